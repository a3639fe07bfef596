package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sendonce/sendonce/scripts/bench"
	"github.com/sendonce/sendonce/shared/sandbox/load"
)

var processCounts = []int{1, 2, 4}

// measureProcesses measures submissions to 1, 2 and 4 processes of the function submit, and returns a table. A
// first round is not counted.
func measureProcesses(ctx context.Context, o options, s *bench.Stack, progress io.Writer) (string, error) {
	addresses := make([]string, slices.Max(processCounts))
	for i := range addresses {
		var err error
		if addresses[i], err = s.Start(ctx, "submit"); err != nil {
			return "", err
		}
	}
	t := bench.NewTasks(1)
	rates := map[int][]float64{}
	ratios := map[int][]float64{}
	for round := range 1 + o.rounds {
		oneProcess := 0.0 // rate
		for _, n := range processCounts {
			p := bench.Phase{Name: fmt.Sprintf("%d processes", n), Connections: o.connections, Duration: o.duration / 10, Rows: bench.NoLimit, Call: t.Submit(true)}
			r, err := p.Run(ctx, addresses[:n]...)
			if err == nil {
				err = r.Err()
			}
			if err != nil {
				return "", err
			}
			if n == 1 {
				oneProcess = r.Rate
			}
			if round > 0 {
				rates[n], ratios[n] = append(rates[n], r.Rate), append(ratios[n], r.Rate/oneProcess)
			}
			fmt.Fprintf(progress, "%-24s %8.0f submissions/s\n", p.Name, r.Rate)
		}
	}
	var b strings.Builder
	b.WriteString("| processes | submissions/s | ratio to one: median (range) |\n|--:|--:|--:|\n")
	for _, n := range processCounts {
		slices.Sort(rates[n])
		slices.Sort(ratios[n])
		fmt.Fprintf(&b, "| %d | %.0f | %.2f (%.2f to %.2f) |\n", n, load.Quantile(rates[n], 0.5), load.Quantile(ratios[n], 0.5), ratios[n][0], ratios[n][len(ratios[n])-1])
	}
	if err := t.Ledger.CheckTasks(ctx, s.Conn); err != nil {
		return "", err
	}
	_, err := s.Conn.Exec(ctx, "truncate tasks, task_live, submission_keys, receive_logs")
	return b.String(), err
}
