package webhooks

const (
	EndedAtOnce     = endedAtOnce
	LockEndpointSQL = lockEndpointSQL
	LockHealthSQL   = lockHealthSQL
	MaxEndpoints    = maxEndpoints
	RecordBytes     = recordBytes
	RecordRows      = recordRows
)
