package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/sendonce/sendonce/scripts/bench"
)

var processCounts = []int{1, 2, 4}

// measureProcesses measures submissions to 1, 2 and 4 processes of the function submit, and returns a table. A
// first round is not counted. At the end it empties the tables.
func measureProcesses(ctx context.Context, o options, s *bench.Stack, progress io.Writer) (string, error) {
	addresses := make([]string, slices.Max(processCounts))
	for i := range addresses {
		var err error
		if addresses[i], err = s.Start(ctx, "submit"); err != nil {
			return "", err
		}
	}
	t, table := bench.NewTasks(1), &bench.Table{Progress: progress}
	err := table.Rounds(o.rounds, func(table *bench.Table) error {
		oneProcessRate := 0.0
		for _, n := range processCounts {
			p := bench.Phase{Name: fmt.Sprintf("submit, processes: %d", n), Connections: o.connections, Duration: o.duration / 10, MaxRows: bench.NoLimit, Call: t.Submit(bench.WithKey)}
			r, err := p.Run(ctx, addresses[:n]...)
			if err != nil {
				return err
			}
			if n == 1 {
				oneProcessRate = r.Rate
			}
			r.Compare("one process", oneProcessRate)
			table.Add(r)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if err := errors.Join(table.Err(), t.Ledger.CheckTasks(ctx, s.Conn)); err != nil {
		return "", err
	}
	_, err = s.Conn.Exec(ctx, "truncate tasks, task_live, submission_keys, receive_logs")
	return table.String(), err
}
