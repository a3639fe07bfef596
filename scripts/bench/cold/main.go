// Command cold is `make bench-cold`. It measures the memory of each function, and the time from its start to
// its first response, which needs a login to Postgres and a query. After each start of a function, it starts
// the baseline: a program with net/http and pgx only. It fails if a function exceeds a limit in row.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/sendonce/sendonce/scripts/bench"
)

func main() {
	runs := flag.Int("runs", 20, "how often each function is started, 1 to 500")
	flag.Parse()
	bench.Main("bench-cold", func(ctx context.Context, progress io.Writer) (string, error) {
		rows, report, err := run(ctx, *runs, nil, progress)
		return report, errors.Join(err, check(rows))
	})
}

// run measures the starts of the functions in only; of all functions if only is empty.
func run(ctx context.Context, runs int, only []string, progress io.Writer) (rows []row, report string, err error) {
	if runs < 1 || runs > 500 {
		return nil, "", errors.New("-runs must be from 1 to 500")
	}
	err = bench.Prepare(ctx, progress, func(m *bench.Machine) (err error) {
		info, err := os.Stat(m.Binary)
		if err != nil {
			return err
		}
		if m.Binary, err = copyAsUnpacked(m.Binary); err != nil {
			return err
		}
		// The function wechat needs an app. It does not call WeChat, since there is nothing to send.
		stack, err := bench.NewStack(ctx, m, "WECHAT_APP_ID=cold", "WECHAT_APP_SECRET=cold")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stack.Close()) }()
		rows, err = measure(ctx, stack, runs, only, progress)
		report = table(rows) + fmt.Sprintf("\n%s\n", m) + fmt.Sprintf(text, runs, megabytes(info.Size()))
		return err
	})
	return rows, report, err
}

const text = `Each function alone, %d starts: the time from before the fork until its first call gets a 2xx, which needs a login to Postgres and at
least one query. The baseline is a program that needs only net/http and pgx for a login and one query; it is started after each start of the
function, and the ratio is that of the two. Through PgBouncer, as in the production overlay, a start uses open connections: the median of as
many starts. Memory is the VmRSS after the first call, once it is stable, the maximum of the starts without PgBouncer; a part of it is pages of
the binary, which instances on one machine share. The binary has %.1f MB (1 MB = 1000000 bytes) and is in the page cache, as after its image was
unpacked.
`
