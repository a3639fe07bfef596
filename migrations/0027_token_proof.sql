-- What a caller's token is compared with, so that token_hash itself is read by none of the roles that the functions log in as: the
-- SHA-256 of a salt and token_hash. It tells who knows a token and is of no use to anybody who does not.
CREATE FUNCTION token_proof(caller_id bigint, salt bytea) RETURNS bytea
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT sha256(salt || token_hash) FROM public.callers WHERE id = caller_id
$$;
REVOKE EXECUTE ON FUNCTION token_proof(bigint, bytea) FROM PUBLIC;
