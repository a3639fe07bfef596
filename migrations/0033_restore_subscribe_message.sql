-- Takes a subscribe message back out of the archive with its sends, to be sent again. SECURITY DEFINER: so the functions' role needs
-- neither delete archived messages nor choose the id of a new one. Does nothing where there is none; a second call waits for the first.
CREATE FUNCTION restore_subscribe_message(message_id bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH l AS (
        DELETE FROM public.archived_subscribe_message_logs WHERE id = message_id RETURNING *
    ), s AS (
        DELETE FROM public.archived_subscribe_message_sends WHERE log_id = message_id RETURNING *
    ), g AS (
        INSERT INTO public.subscribe_message_logs (id, template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid,
            message_data, page_path, send_status, send_time, retry_count, error_code, error_message, caller_id, task_id, retries_before, doubtful,
            created_at, updated_at)
        OVERRIDING SYSTEM VALUE
        SELECT id, template_id, template_type, business_type, business_id, receiver_user_id, receiver_openid,
            message_data, page_path, send_status, send_time, retry_count, error_code, error_message, caller_id, task_id, retries_before, doubtful,
            created_at, updated_at
        FROM l
    )
    INSERT INTO public.subscribe_message_sends (task_id, log_id, template_id, receiver_openid, message_data, page_path, lang, miniprogram_state,
        created_at)
    SELECT task_id, log_id, template_id, receiver_openid, message_data, page_path, lang, miniprogram_state, created_at FROM s
$$;
REVOKE EXECUTE ON FUNCTION restore_subscribe_message(bigint) FROM PUBLIC;
