package messages

import "time"

const (
	DeliveredKept         = deliveredKept
	MessageDestinationKey = messageDestinationKey
	PeersSQL              = peersSQL
)

var InsertMessages = &insertMessages

func DestinationKey(caller int64, url string) string { return destinationKey(caller, url) }

// CountedAt returns when the last count of a caller ended.
func (st *Store) CountedAt(caller int64) time.Time { return st.quotas.CountedAt(caller) }
