package tasks

import (
	"context"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/quota"
	"github.com/sendonce/sendonce/shared/task"
)

// Store reads and writes tasks.
type Store struct {
	db *store.DB

	submits      *store.Coalescer[*Submission, Submitted]
	reports      *store.Coalescer[*Report, Reported]
	taskQuotas   *quota.Quotas
	hooks        Hooks
	onPending    func(queue string, n int) // never nil
	blockedWords func(ctx context.Context) (contains func(text string) bool, err error)
	marks        lowWaterMarks
	nonEmpty     recentlyNonEmpty
	claimQueues  claimQueues
	claimIDs     claimIDs
	lostClaims   lostClaims
	statusOf     func(code string) int
	backoff      task.Backoff
	phones       task.Country
}
