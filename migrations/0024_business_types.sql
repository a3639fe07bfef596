-- Which business types of subscribe messages a caller may order. A type names keys that all callers share, so that one caller
-- could take another's.
ALTER TABLE callers ADD COLUMN business_types text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN callers.business_types IS 'The business types of subscribe messages that the caller may order and look up; empty: all.';
