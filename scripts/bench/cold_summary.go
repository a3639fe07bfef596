package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// What a function may take to come up, on two cores, and what it may keep.
const (
	coldLimit     = 15 * time.Millisecond // the median
	residentLimit = 25_000_000            // bytes
)

// coldSummary is how functions started.
type coldSummary struct {
	summary
	runs   int
	binary int64 // size in bytes
	rows   []coldRow
}

// coldRow is one function.
type coldRow struct {
	function string
	took     []time.Duration // of each run, ascending
	floor    []time.Duration // of the floor, started in turn with it, ascending
	pooled   []time.Duration // through PgBouncer, in turn too, ascending; nil where there is none
	resident int64           // the most of all runs, in bytes
}

func (r coldRow) median() time.Duration { return median(r.took) }

// median is the one of ascending times.
func median(times []time.Duration) time.Duration {
	half := len(times) / 2
	if len(times)%2 == 0 {
		return (times[half-1] + times[half]) / 2
	}
	return times[half]
}

func (s *coldSummary) add(r coldRow) {
	s.rows = append(s.rows, r)
	fmt.Fprintf(s.progress, "%-10s %5.1f ms %5.1f MB\n", r.function, milliseconds(r.median()), megabytes(r.resident))
}

// wrong names the functions that are above a limit.
func (s *coldSummary) wrong() error {
	if len(s.rows) == 0 {
		return errors.New("no function was measured")
	}
	var above []string
	for _, r := range s.rows {
		if r.median() > coldLimit {
			above = append(above, fmt.Sprintf("%s takes %.1f ms", r.function, milliseconds(r.median())))
		}
		if r.resident > residentLimit {
			above = append(above, fmt.Sprintf("%s keeps %.1f MB", r.function, megabytes(r.resident)))
		}
	}
	if len(above) > 0 {
		return fmt.Errorf("above %.0f ms or %.0f MB: %s", milliseconds(coldLimit), megabytes(residentLimit), strings.Join(above, "; "))
	}
	return nil
}

// String is the table in Markdown with what must be known to read it.
func (s *coldSummary) String() string {
	var b strings.Builder
	b.WriteString("| function | median ms | max ms | floor ms | of the floor | through PgBouncer ms | idle memory MB |\n|---|--:|--:|--:|--:|--:|--:|\n")
	for _, r := range s.rows {
		floor, pooled := median(r.floor), "-"
		if len(r.pooled) > 0 {
			pooled = fmt.Sprintf("%.1f", milliseconds(median(r.pooled)))
		}
		fmt.Fprintf(&b, "| %s | %.1f | %.1f | %.1f | %.2f | %s | %.1f |\n", r.function, milliseconds(r.median()), milliseconds(r.took[len(r.took)-1]),
			milliseconds(floor), r.median().Seconds()/floor.Seconds(), pooled, megabytes(r.resident))
	}
	fmt.Fprintf(&b, "\n%s\n", s.machine())
	fmt.Fprintf(&b, "Each function by itself, %d starts: from before the fork until its first call is answered 2xx, which takes a login to Postgres\n", s.runs)
	b.WriteString("and at least one query. The floor, started in turn with it, is what net/http and pgx take for a login and one query. Through\n")
	b.WriteString("PgBouncer, as the production overlay goes, a start finds connections that are warm: the median of as many, in turn too. Memory is\n")
	b.WriteString("VmRSS once it no longer changes after that, the most of all starts; a part of it is pages of the binary, which instances on\n")
	fmt.Fprintf(&b, "one machine share. The binary has %.1f MB (1 MB = 1000000 bytes) and is in memory as after its image was unpacked.\n", megabytes(s.binary))
	b.WriteString("A machine's pace changes; where it is slow the floor shows it.\n")
	verdict := "Every median is at most %.0f ms and every memory at most %.0f MB.\n"
	if s.wrong() != nil {
		verdict = "NOT every" + strings.TrimPrefix(verdict, "Every")
	}
	fmt.Fprintf(&b, verdict, milliseconds(coldLimit), megabytes(residentLimit))
	return b.String()
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }

func megabytes(bytes int64) float64 { return float64(bytes) / 1e6 }
