package settings

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/config"
)

var namedRoles = Roles{Hot: "hot", Read: "read", Admin: "admin", Retention: "retention"}

func TestDatabaseRoles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Roles)
		want   string // the setting that is refused
	}{
		"a role of its own for each":  {func(*Roles) {}, ""},
		"the user of the URL for all": {func(r *Roles) { r.Hot, r.Read = "", "" }, ""},
		"one role for hot and read":   {func(r *Roles) { r.Read = "hot" }, "SENDONCE_READ_ROLE"},
		"one role for hot and admin":  {func(r *Roles) { *r = Roles{Hot: "a", Read: "b", Admin: "a", Retention: "c"} }, "SENDONCE_ADMIN_ROLE"},
		"no role for retention":       {func(r *Roles) { r.Retention = "" }, "SENDONCE_RETENTION_ROLE"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := namedRoles
			c.change(&r)
			bad := r.Validate()
			if c.want == "" {
				require.Empty(t, bad)
				require.Equal(t, r.Hot == "", r.Admin == "" && r.Retention == "", "without Hot, Validate clears Admin and Retention")
				return
			}
			require.Len(t, bad, 1)
			require.Equal(t, c.want, bad[0].Name)
		})
	}
}

func TestPasswordInDatabaseURLIsRefused(t *testing.T) {
	t.Parallel()
	for url, refused := range map[string]bool{
		"postgres://localhost:5432/x":                    false,
		"postgres://owner@localhost:5432/x":              false,
		"postgres://a,b/x?target_session_attrs=primary":  false,
		"postgres://owner:secret@localhost:5432/x":       true,
		"postgres://owner:secret@a:5432,b:5432/x":        true,
		"postgres://owner:secret@a:5432,b/x":             true,
		"postgres://a:5432,b/x?sslpassword=of-the-key":   false,
		"postgres://localhost/x?user=owner&password=abc": true,
		"host=localhost user=owner password=secret":      true,
		"host=localhost": false,
		"":               false,
	} {
		require.Equal(t, refused, len(namedRoles.checkPassword(url)) > 0, url)
		require.Empty(t, (&Roles{}).checkPassword(url), "without roles, the functions log in with the password of the URL")
	}
	cfg := Config{DatabaseURL: "postgres://owner:secret@localhost/x", Password: "x", Roles: namedRoles}
	err := config.Error(cfg.ServingProblems(false)).Error()
	require.Contains(t, err, "DATABASE_URL holds a password")
	require.NotContains(t, err, "owner:secret")
}
