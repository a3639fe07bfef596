package messages

import (
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/quota"
)

// Store reads and writes reliable messages.
type Store struct {
	db *store.DB

	submissions *store.Coalescer[*Submission, Submitted]
	quotas      *quota.Quotas
	shares      streamShares
	inboxes     inboxShares
}
