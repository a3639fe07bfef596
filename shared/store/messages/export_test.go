package messages

import "time"

const (
	DeliveredKept         = deliveredKept
	InsertMessagesSQL     = insertMessagesSQL
	MessageDestinationKey = messageDestinationKey
	PeersSQL              = peersSQL
)

func DestinationKey(caller int64, url string) string { return destinationKey(caller, url) }

func MessageColumns(rows []*Submission) []any { return messageColumns(rows) }

// CountedAt is when the last count of a caller ended.
func (st *Store) CountedAt(caller int64) time.Time { return st.messageQuotas.CountedAt(caller) }
