package alerts

import "context"

type Snapshot = alertSnapshot

// CheckSoon lets the next Check of this process run at once.
func (st *Store) CheckSoon() { st.nextAlertCheck.Store(0) }

// CheckNow runs a check, even if another ran a moment ago.
func (st *Store) CheckNow(ctx context.Context) (again bool, err error) { return st.checkNow(ctx) }

func (st *Store) ReadSnapshot(ctx context.Context) (Snapshot, error) { return st.readSnapshot(ctx) }

func (st *Store) ApplySnapshot(ctx context.Context, s Snapshot) (again bool, err error) {
	return st.applySnapshot(ctx, s)
}

// WithoutQueues returns the snapshot as if no queue had pending tasks or results.
func (s alertSnapshot) WithoutQueues() Snapshot {
	s.queues = nil
	return s
}
