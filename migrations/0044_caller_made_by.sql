-- A limited operator that grants a caller more than it had becomes its maker too, so that these grants end with the operator's own.

COMMENT ON COLUMN callers.made_by IS 'The limited operator that made the caller, or was the first to replace its token or to grant it more. NULL: none did.';
