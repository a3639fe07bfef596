-- A secret in the form enc1 is bound to the id of its row alone, so that who may delete and add rows could give it to another
-- caller. Like a plain one it is not written any more once all are enc2; `sendonce reencrypt` makes them so.
CREATE OR REPLACE FUNCTION refuse_plain_secrets() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
DECLARE
    upgraded boolean;
BEGIN
    IF TG_TABLE_NAME = 'webhook_endpoints' THEN
        upgraded := EXISTS (SELECT FROM webhook_endpoints WHERE secret NOT LIKE 'enc2.%' OR old_secret NOT LIKE 'enc2.%');
    ELSE
        upgraded := EXISTS (SELECT FROM provider_tokens WHERE token NOT LIKE 'enc2.%');
    END IF;
    IF NOT upgraded THEN
        RAISE EXCEPTION 'a secret of % is not encrypted and bound to its row', TG_TABLE_NAME
            USING ERRCODE = 'check_violation', HINT = 'replace processes of earlier versions';
    END IF;
    RETURN new;
END
$$;
COMMENT ON FUNCTION refuse_plain_secrets() IS 'Refuses a signing secret or provider token that is not encrypted and bound to its row, once all others are.';

DROP TRIGGER plain_secrets_added ON webhook_endpoints;
DROP TRIGGER plain_secrets_changed ON webhook_endpoints;
DROP TRIGGER plain_token_written ON provider_tokens;
CREATE TRIGGER plain_secrets_added BEFORE INSERT ON webhook_endpoints FOR EACH ROW
    WHEN (new.secret NOT LIKE 'enc2.%' OR new.old_secret NOT LIKE 'enc2.%')
    EXECUTE FUNCTION refuse_plain_secrets();
CREATE TRIGGER plain_secrets_changed BEFORE UPDATE OF secret, old_secret ON webhook_endpoints FOR EACH ROW
    WHEN (new.secret NOT LIKE 'enc2.%' OR new.old_secret NOT LIKE 'enc2.%')
    EXECUTE FUNCTION refuse_plain_secrets();
CREATE TRIGGER plain_token_written BEFORE INSERT OR UPDATE OF token ON provider_tokens FOR EACH ROW
    WHEN (new.token NOT LIKE 'enc2.%')
    EXECUTE FUNCTION refuse_plain_secrets();
