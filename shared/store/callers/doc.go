// Package callers stores callers and their grants. Tokens are stored as hashes.
//
// A limited operator is an admin with queues. Within its own grants, it may create callers, and change those that it
// manages (StoredCaller.Manages), except those that another limited operator made (mustOwn). It may revoke each caller that
// it manages. When a limited operator is revoked, or its grants are reduced, the same happens to the callers that it made.
// The built-in admin is caller 0: it has no row and no limits.
package callers
