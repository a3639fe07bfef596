-- Texts are also searched without the characters that are not shown.
COMMENT ON TABLE blocked_words IS 'Words that no message may hold. word as typed; folded (without invisible characters, NFKC, case-folded) is what texts are searched for.';
