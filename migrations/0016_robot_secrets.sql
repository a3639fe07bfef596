-- A robot of DingTalk or Feishu may have a secret of its own, with which it verifies calls. The secrets that were made for robots before signed headers
-- that no robot reads.
ALTER TABLE webhook_endpoints ALTER COLUMN secret DROP NOT NULL;
UPDATE webhook_endpoints SET secret = NULL, old_secret = NULL, old_secret_until = NULL, rotated_at = NULL WHERE format <> 'cloudevents';
ALTER TABLE webhook_endpoints ADD CONSTRAINT webhook_endpoints_secret
    CHECK (CASE WHEN format = 'cloudevents' THEN secret IS NOT NULL ELSE secret IS NULL OR format IN ('dingtalk', 'feishu') END);
COMMENT ON COLUMN webhook_endpoints.secret IS 'Encrypted and bound to its row: nobody without the key can put a secret of its own choice there. That of a robot was made by the robot; null: it demands no signature.';
