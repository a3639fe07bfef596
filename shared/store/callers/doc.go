// Package callers stores callers and their grants. Tokens are stored as hashes.
//
// A limited operator is an admin with queues. It may create callers and change those that it
// manages (StoredCaller.Manages), within its own grants. When it is revoked, or its grants are
// reduced, the callers that it made are revoked or reduced too. The built-in admin is caller 0: it
// has no row and no limits.
package callers
