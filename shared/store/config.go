package store

// Config says where the database is and as whom the functions log in.
type Config struct {
	URL      string // postgres:// URL; several hosts are allowed, see pgx
	Roles    Roles
	MaxConns int       // per pool; 0 = 8
	Pooler   bool      // behind PgBouncer in transaction mode: no prepared statements are kept
	Events   EventMode // which changes of tasks are published
	Keys     Keys      // encrypt the secrets that are stored
	OnEvents func()    // called after a commit that wrote events for the relay; nil = no call
	OnFailed func()    // called after a commit of failures that count for alerts; nil = no call
}

// Roles are the database users of each kind of work. An empty password keeps that of the URL. If
// Hot is empty, hot, admin and retention work uses the URL's user. If Read is empty, reads use it.
type Roles struct {
	Hot, HotPassword             string // everything else
	Read, ReadPassword           string // lists and statistics
	Admin, AdminPassword         string // changes of callers, templates and other settings
	Retention, RetentionPassword string // archiving and deleting old rows
}
