-- Endpoints that are robots of Slack, DingTalk, WeCom or Feishu: they accept alerts as a short text, each in its own JSON format.
ALTER TABLE webhook_endpoints
    ADD COLUMN format varchar(20) NOT NULL DEFAULT 'cloudevents',
    ADD CONSTRAINT webhook_endpoints_format CHECK (format IN ('cloudevents', 'slack', 'dingtalk', 'wecom', 'feishu')
        AND (format = 'cloudevents' OR events <> '{}' AND events <@ ARRAY['webhook.disabled', 'alert.raised', 'alert.cleared']));
COMMENT ON COLUMN webhook_endpoints.format IS 'The format of the POST: cloudevents, or the text message of a robot of slack, dingtalk, wecom or feishu.';
