package sandbox

// EncryptionKey is a SENDONCE_ENCRYPTION_KEYS for tests: it protects nothing.
const EncryptionKey = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
