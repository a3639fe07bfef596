package settings

import (
	"regexp"
	"strings"

	"github.com/sendonce/sendonce/shared/task"
)

// Roles are the Postgres roles that the functions log in as (see store.Roles). A process has only
// the passwords of the roles that it uses.
type Roles struct {
	Hot               string `envconfig:"SENDONCE_HOT_ROLE" default:"sendonce_hot" desc:"database role of all functions for most of their work; empty = the user of DATABASE_URL, who then also replaces SENDONCE_ADMIN_ROLE and SENDONCE_RETENTION_ROLE"`
	HotPassword       string `envconfig:"SENDONCE_HOT_PASSWORD" secret:"true" readby:"admin,claim,console,deliver,drain,exporter,messages,migrate,reencrypt,relay,report,save,stream,submit,subscribe,sweep,webhooks,wechat" desc:"password of SENDONCE_HOT_ROLE"`
	Read              string `envconfig:"SENDONCE_READ_ROLE" default:"sendonce_read" desc:"database role of lists and statistics; empty = the user of DATABASE_URL"`
	ReadPassword      string `envconfig:"SENDONCE_READ_PASSWORD" secret:"true" readby:"admin,console,drain,exporter,messages,migrate,save,subscribe,sweep,webhooks" desc:"password of SENDONCE_READ_ROLE"`
	Admin             string `envconfig:"SENDONCE_ADMIN_ROLE" default:"sendonce_admin" desc:"database role that changes callers, templates, default contents, blocked words and dead letters"`
	AdminPassword     string `envconfig:"SENDONCE_ADMIN_PASSWORD" secret:"true" readby:"admin,console,migrate" desc:"password of SENDONCE_ADMIN_ROLE"`
	Retention         string `envconfig:"SENDONCE_RETENTION_ROLE" default:"sendonce_retention" desc:"database role that archives and deletes old rows"`
	RetentionPassword string `envconfig:"SENDONCE_RETENTION_PASSWORD" secret:"true" readby:"archive,migrate,sweep" desc:"password of SENDONCE_RETENTION_ROLE"`
}

// Validate checks what the types alone cannot. If Hot is empty, it empties Admin and Retention too.
func (r *Roles) Validate() []task.Field {
	if r.Hot == "" {
		r.Admin, r.Retention = "", ""
	}
	var bad []task.Field
	settingOf := map[string]string{} // by role
	for _, c := range []struct {
		setting, role string
		mayBeEmpty    bool
	}{
		{"SENDONCE_HOT_ROLE", r.Hot, true}, {"SENDONCE_READ_ROLE", r.Read, true},
		{"SENDONCE_ADMIN_ROLE", r.Admin, r.Hot == ""}, {"SENDONCE_RETENTION_ROLE", r.Retention, r.Hot == ""},
	} {
		sameRole := settingOf[c.role]
		switch {
		case c.role == "" && !c.mayBeEmpty:
			bad = append(bad, task.Field{Name: c.setting, Message: "must name a role unless SENDONCE_HOT_ROLE is empty"})
		case c.role != "" && sameRole != "":
			bad = append(bad, task.Field{Name: c.setting, Message: "must not name the same role as " + sameRole + ": each of the four roles has other rights"})
		default:
			settingOf[c.role] = c.setting
		}
	}
	return bad
}

// checkPassword refuses a password in the URL unless the functions log in as the URL's user (Hot is empty):
// otherwise it is most likely the password of the owner, which no function may have.
func (r *Roles) checkPassword(databaseURL string) []task.Field {
	if r.Hot == "" || !hasPassword(databaseURL) {
		return nil
	}
	return []task.Field{{Name: "DATABASE_URL", Message: "holds a password, and the functions log in as roles with passwords of their own: leave user and password out of the URL and set SENDONCE_HOT_PASSWORD and the passwords of the other roles, or, to log in as the user of the URL, set SENDONCE_HOT_ROLE and SENDONCE_READ_ROLE to the empty string"}}
}

// hasPassword does not use url.Parse, which refuses several hosts with ports (a:5432,b).
func hasPassword(databaseURL string) bool {
	_, rest, _ := strings.Cut(databaseURL, "://")
	authority, _, _ := strings.Cut(rest, "/")
	at := strings.LastIndex(authority, "@")
	return at >= 0 && strings.Contains(authority[:at], ":") || regexp.MustCompile(`(^|[?&\s])password=`).MatchString(databaseURL)
}
