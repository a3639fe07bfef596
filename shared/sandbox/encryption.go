package sandbox

// EncryptionKey is a SENDONCE_ENCRYPTION_KEYS for tests: of no secret worth keeping.
const EncryptionKey = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
