package webhooks

const (
	LockEndpointSQL = lockEndpointSQL
	LockHealthSQL   = lockHealthSQL
	MaxEndpoints    = maxEndpoints
	RecordBytes     = recordBytes
	RecordRows      = recordRows
)
