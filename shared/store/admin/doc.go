// Package admin stores templates, default contents, blocked words and dead letters, and lists the
// audit trail. Each change by an operator is committed together with its audit entry.
package admin
