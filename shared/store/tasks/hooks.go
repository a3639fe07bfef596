package tasks

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/sendonce/sendonce/shared/task"
)

// Change is one task before and after a decision.
type Change struct {
	Before, After task.Task
}

// Hooks run statements of package subscribe in the transaction that changes tasks, so that subscribe
// messages stay consistent with their tasks.
type Hooks struct {
	// Changed adds statements to the batch that applies the changes.
	Changed func(batch *pgx.Batch, changes []Change)
	// MayRevive returns an error if the final task t must not become live again. t is locked.
	MayRevive func(ctx context.Context, conn *pgx.Conn, t task.Task) error
}
