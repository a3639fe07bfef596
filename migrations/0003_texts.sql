-- Templates and default texts of SMS, and words that no text may contain.

CREATE TABLE sms_templates (
    id               integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    template_name    varchar(100) NOT NULL,
    template_content varchar(200) NOT NULL,
    is_active        boolean NOT NULL DEFAULT true,
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX idx_sms_templates_active ON sms_templates (is_active);
COMMENT ON TABLE sms_templates IS 'Templates of SMS texts with {parameters}. A text that names no template uses the active one with the lowest id.';

CREATE TABLE default_sms_data (
    id           integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    phone_number varchar(20) NOT NULL UNIQUE,
    content      varchar(200) NOT NULL,
    use_template boolean NOT NULL DEFAULT false,
    is_sent      boolean NOT NULL DEFAULT false,
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX idx_default_sms_sent ON default_sms_data (is_sent);
COMMENT ON TABLE default_sms_data IS 'The text that is sent once to a phone number whose submission has no content.';

CREATE TABLE blocked_words (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    word       varchar(100) NOT NULL,
    folded     text COLLATE "C" NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE blocked_words IS 'Words that no message may contain. The column word has a word as it was typed; folded has it without invisible characters, in NFKC and case-folded. Texts are folded in the same way before they are searched.';
