package store

import "github.com/jackc/pgx/v5/pgxpool"

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

// DB has the connection pools that the stores of all subjects share.
type DB struct {
	pools
	EventMode  EventMode
	Keys       Keys
	OnEvents   func() // never nil
	onFailed   func()
	hotHasRole bool // Hot logs in as the role that migrate configures
}

// Open prepares the pools. The first call that needs a connection opens it.
func Open(cfg Config) (*DB, error) {
	pools, err := openPools(cfg)
	if err != nil {
		return nil, err
	}
	return &DB{
		pools: pools, EventMode: cfg.Events, Keys: cfg.Keys, OnEvents: orNoop(cfg.OnEvents), onFailed: orNoop(cfg.OnFailed), hotHasRole: cfg.Roles.Hot != "",
	}, nil
}

func orNoop(call func()) func() {
	if call == nil {
		return func() {}
	}
	return call
}

// Close waits for the statements under way and closes the pools.
func (db *DB) Close() { db.close() }

// Stats returns the statistics of the pools by name.
func (db *DB) Stats() map[string]*pgxpool.Stat {
	stats := map[string]*pgxpool.Stat{}
	for name, pool := range db.byName() {
		stats[name] = pool.Stat()
	}
	return stats
}
