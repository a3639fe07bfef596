package store

// Config has the address of the database, the users that log in, and other settings of the store.
type Config struct {
	URL      string // postgres:// URL; several hosts are allowed, see pgx
	Roles    Roles
	MaxConns int       // per pool; 0 = 8; the pools of Roles.Admin and Roles.Retention have at most 2
	Pooler   bool      // behind PgBouncer in transaction mode: no prepared statements are kept
	Events   EventMode // which changes of tasks are published
	Keys     Keys      // keys that encrypt the stored secrets
	OnEvents func()    // called after a commit that wrote, or may have written, events for the relay; nil = no call
	OnFailed func()    // called after a commit that stored, or may have stored, failures that count for alerts; nil = no call
}

// Roles are the database users for each kind of work. If a password is empty, the password of the URL is used. If
// Hot is empty, the URL's user does the work of Hot, Admin and Retention. If Read is empty, the URL's user does the
// work of Read.
type Roles struct {
	Hot, HotPassword             string // all work that is not listed below
	Read, ReadPassword           string // lists and statistics
	Admin, AdminPassword         string // changes of callers, templates and other settings
	Retention, RetentionPassword string // archiving and deleting old rows
}
