// Package callers stores who may call, and what each caller may do. Tokens are stored as
// hashes. Quotas and shares count all callers of one account together.
package callers
