package tasks

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sendonce/sendonce/shared/store"
)

// claimIDs returns ids for claims, so that an id is known before its claim is sent. It takes blocks of ids from the
// sequence claim_seq. The ids are unique, but a later claim may have a lower id.
type claimIDs struct {
	mu     sync.Mutex
	last   int64 // the last id that next returned
	unused int64 // how many ids of the block remain; they follow last
}

// claimBlockSQL returns the first id of a block of claimBlock ids. claimBlock is the increment of the sequence.
const (
	claimBlock    = 1000
	claimBlockSQL = `select nextval('claim_seq')`
)

func (c *claimIDs) next(ctx context.Context, pool *pgxpool.Pool) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unused == 0 {
		if err := pool.QueryRow(store.WithoutCaller(ctx), claimBlockSQL, store.Unprepared).Scan(&c.last); err != nil {
			return 0, err
		}
		c.last, c.unused = c.last-1, claimBlock
	}
	c.last, c.unused = c.last+1, c.unused-1
	return c.last, nil
}

// drop discards the rest of the block. It must be called after a connection broke: nextval does not
// wait for a standby, so after a failover the new primary may return the same block.
func (c *claimIDs) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unused = 0
}
