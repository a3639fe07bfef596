-- Once every secret is encrypted no other is written: who may write a row cannot put a signing secret or a token of its own
-- choice there without the key. Where secrets are left from before there was a key, `sendonce reencrypt` encrypts them.
CREATE FUNCTION refuse_plain_secrets() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    upgraded boolean;
BEGIN
    IF TG_TABLE_NAME = 'webhook_endpoints' THEN
        upgraded := EXISTS (SELECT FROM webhook_endpoints WHERE secret NOT LIKE 'enc1.%' OR old_secret NOT LIKE 'enc1.%');
    ELSE
        upgraded := EXISTS (SELECT FROM provider_tokens WHERE token NOT LIKE 'enc1.%');
    END IF;
    IF NOT upgraded THEN
        RAISE EXCEPTION 'a secret of % is not encrypted', TG_TABLE_NAME
            USING ERRCODE = 'check_violation', HINT = 'replace processes of versions before encryption';
    END IF;
    RETURN new;
END
$$;
COMMENT ON FUNCTION refuse_plain_secrets() IS 'Refuses a signing secret or provider token that is not encrypted, once all others are.';

CREATE TRIGGER plain_secrets_added BEFORE INSERT ON webhook_endpoints FOR EACH ROW
    WHEN (new.secret NOT LIKE 'enc1.%' OR new.old_secret NOT LIKE 'enc1.%')
    EXECUTE FUNCTION refuse_plain_secrets();
CREATE TRIGGER plain_secrets_changed BEFORE UPDATE OF secret, old_secret ON webhook_endpoints FOR EACH ROW
    WHEN (new.secret NOT LIKE 'enc1.%' OR new.old_secret NOT LIKE 'enc1.%')
    EXECUTE FUNCTION refuse_plain_secrets();
CREATE TRIGGER plain_token_written BEFORE INSERT OR UPDATE OF token ON provider_tokens FOR EACH ROW
    WHEN (new.token NOT LIKE 'enc1.%')
    EXECUTE FUNCTION refuse_plain_secrets();
