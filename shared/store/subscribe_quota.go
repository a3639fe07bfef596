package store

import (
	"context"

	"github.com/sendonce/sendonce/shared/task"
)

// SubscribeWithinQuota is Subscribe for such a caller. An order that is skipped is
// answered all the same.
func (db *DB) SubscribeWithinQuota(ctx context.Context, caller Caller, s *Subscription) (out Subscribed, err error) {
	if s.Refused != nil {
		return db.Subscribe(ctx, s)
	}
	db.withinQuota(caller, 1, func(fit int, refusal *task.Error) (saved int) {
		if fit == 0 {
			s.Refused = refusal
		}
		out, err = db.Subscribe(ctx, s)
		if err == nil && !out.Skipped {
			saved = 1
		}
		return saved
	})
	return out, err
}
