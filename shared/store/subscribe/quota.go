package subscribe

import (
	"context"

	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/task"
)

// SubmitWithinQuota is Submit for a caller with a limited number of waiting tasks. A skipped submission succeeds even
// above the limit.
func (st *Store) SubmitWithinQuota(ctx context.Context, caller callers.Caller, s *Submission) (out Submitted, err error) {
	if s.Refused != nil {
		return st.Submit(ctx, s)
	}
	st.tasks.WithinQuota(ctx, caller, 1, func(fit int, refusal *task.Error) (saved int) {
		if fit == 0 {
			s.Refused = refusal
		}
		out, err = st.Submit(ctx, s)
		if err == nil && !out.Skipped {
			saved = 1
		}
		return saved
	})
	return out, err
}
