package admin

import "time"

// MakeBlockedWordsIdle makes the list of blocked words as old as if no text had been checked for an hour.
func (st *Store) MakeBlockedWordsIdle() {
	st.blocked.mu.Lock()
	defer st.blocked.mu.Unlock()
	st.blocked.readAt = st.blocked.readAt.Add(-time.Hour)
	st.blocked.triedAt = st.blocked.triedAt.Add(-time.Hour)
}
