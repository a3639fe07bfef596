package store

import "github.com/jackc/pgx/v5/pgxpool"

// DB has the connection pools that the stores of all subjects share.
type DB struct {
	pools
	EventMode  EventMode
	Keys       Keys
	OnEvents   func() // never nil
	onFailed   func()
	hotHasRole bool // Hot logs in as the role that migrate configures

	costlyReads *fairLimiter // see ReadCostly
}

// maxCostlyReads limits the costly reads that run at the same time in a process.
const maxCostlyReads = 2

// Open prepares the pools. It opens no connection; calls open connections when they need them.
func Open(cfg Config) (*DB, error) {
	pools, err := openPools(cfg)
	if err != nil {
		return nil, err
	}
	return &DB{
		pools: pools, EventMode: cfg.Events, Keys: cfg.Keys, OnEvents: orNoop(cfg.OnEvents), onFailed: orNoop(cfg.OnFailed), hotHasRole: cfg.Roles.Hot != "",
		costlyReads: newFairLimiter(maxCostlyReads, 1),
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
