package sandbox

// EncryptionKey is a value of SENDONCE_ENCRYPTION_KEYS for tests. It is public, so it protects nothing.
const EncryptionKey = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
