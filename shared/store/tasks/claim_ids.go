package tasks

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sendonce/sendonce/shared/store"
)

// claimIDs draws claim ids from the sequence claim_seq in blocks, so that the id is known before the
// claim is sent. Ids are unique, but not in the order of claims.
type claimIDs struct {
	mu         sync.Mutex
	last, free int64
}

// claimBlockSQL draws one block of claimBlock ids, which is the increment of the sequence.
const (
	claimBlock    = 1000
	claimBlockSQL = `select nextval('claim_seq')`
)

func (c *claimIDs) next(ctx context.Context, pool *pgxpool.Pool) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.free == 0 {
		if err := pool.QueryRow(store.WithoutCaller(ctx), claimBlockSQL, store.Unprepared).Scan(&c.last); err != nil {
			return 0, err
		}
		c.last, c.free = c.last-1, claimBlock
	}
	c.last, c.free = c.last+1, c.free-1
	return c.last, nil
}

// drop discards the rest of the block. It must be called after a connection broke: nextval does not
// wait for a standby, so a promoted standby may return the block again.
func (c *claimIDs) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.free = 0
}
