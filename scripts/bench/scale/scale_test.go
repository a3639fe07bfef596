//go:build slow

package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The test measures a private Postgres, even if DATABASE_URL is set. It is not parallel, because of Setenv.
func TestShortRun(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	var progress bytes.Buffer
	o := options{connections: 8, rounds: 1, duration: 100 * time.Millisecond, rate: 200, rows: 1000, pin: 100 * time.Millisecond}
	report, err := run(t.Context(), o, &progress)
	require.NoError(t, err, progress.String())
	for _, row := range []string{
		`\| submit, processes: 1 \| 8 \| \d+ \| .* \| one process \| \d+ \| 1\.00 `, `\| submit, processes: 2 \| 8 \| \d+ `, `\| submit, processes: 4 \| 8 \| \d+ `,
		`\| in empty tables \| \d+ \| \d`, `\| beside 1000 finished tasks \| `,
		`\| while partitions are made and dropped \| `, `\| beside a transaction open for 100ms \| `, `Checked: \d+ tasks accepted`,
	} {
		require.Regexp(t, row, report)
	}
}
