-- A robot of DingTalk or Feishu may have its own secret, with which it verifies calls. Until now Sendonce created secrets for robots and
-- signed headers with them that no robot reads: these are deleted.
ALTER TABLE webhook_endpoints ALTER COLUMN secret DROP NOT NULL;
UPDATE webhook_endpoints SET secret = NULL, old_secret = NULL, old_secret_until = NULL, rotated_at = NULL WHERE format <> 'cloudevents';
ALTER TABLE webhook_endpoints ADD CONSTRAINT webhook_endpoints_secret
    CHECK (CASE WHEN format = 'cloudevents' THEN secret IS NOT NULL ELSE secret IS NULL OR format IN ('dingtalk', 'feishu') END);
COMMENT ON COLUMN webhook_endpoints.secret IS 'Encrypted and bound to its row: nobody without the encryption key can store another secret here. The secret of a robot was created by the robot; null: it requires no signature.';
