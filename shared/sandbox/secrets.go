package sandbox

import "github.com/sendonce/sendonce/migrations"

// EncryptionKey is a value of SENDONCE_ENCRYPTION_KEYS for tests. It is public, so it protects nothing.
const EncryptionKey = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="

// Roles are the roles of test databases, with their passwords.
var Roles = migrations.Roles{
	Hot: "sendonce_hot", HotPassword: "hot-password",
	Read: "sendonce_read", ReadPassword: "read-password",
	Admin: "sendonce_admin", AdminPassword: "admin-password",
	Retention: "sendonce_retention", RetentionPassword: "retention-password",
}

var roleNames = []string{Roles.Hot, Roles.Read, Roles.Admin, Roles.Retention}

// Password returns the password of one of Roles.
func Password(role string) string {
	return map[string]string{
		Roles.Hot: Roles.HotPassword, Roles.Read: Roles.ReadPassword, Roles.Admin: Roles.AdminPassword, Roles.Retention: Roles.RetentionPassword,
	}[role]
}

// RolesEnv returns the settings with the passwords of Roles.
func RolesEnv() []string {
	return []string{
		"SENDONCE_HOT_PASSWORD=" + Roles.HotPassword, "SENDONCE_READ_PASSWORD=" + Roles.ReadPassword,
		"SENDONCE_ADMIN_PASSWORD=" + Roles.AdminPassword, "SENDONCE_RETENTION_PASSWORD=" + Roles.RetentionPassword,
	}
}

// The app of a fake WeChat, unless WeChatOptions has another one.
const (
	WeChatAppID  = "wx0123456789abcdef"
	WeChatSecret = "a-secret-of-the-sandbox"
)
