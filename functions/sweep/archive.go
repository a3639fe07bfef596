package sweep

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/maintenance"
)

const progressEvery = 5 * time.Second // between two lines of progress

// Archive is the command archive. It archives all old rows in one run and prints the progress. The function sweep
// archives old rows in parts. The command and the function may run at the same time.
func Archive(ctx context.Context, env *fn.Env, args []string) error {
	run, err := parseArchiveArgs(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case !env.HasDatabase():
		return errors.New("DATABASE_URL is not set; give the URL that the functions have")
	}
	p := progress{dryRun: run.DryRun, printedAt: time.Now()}
	failed := 0
	for step, err := range env.Maintenance.Archive(ctx, run) {
		if err != nil {
			p.finish()
			return err
		}
		p.add(step)
		failed += len(step.Failed)
	}
	p.finish()
	if run.Before.IsZero() {
		if env.Config.RetentionDays == 0 {
			fmt.Println("RETENTION_DAYS is 0: nothing is moved without --before")
		}
		if env.Config.LogDays == 0 {
			fmt.Println("RETENTION_LOG_DAYS is 0: nothing is deleted without --before")
		}
	}
	if failed > 0 {
		return fmt.Errorf("the database refused to archive %d rows, named above; they stay in their tables", failed)
	}
	return nil
}

// progress prints a line for each table and each partition, lines of progress ("so far"), and a line for each row that
// cannot be archived.
type progress struct {
	dryRun    bool
	table     maintenance.ArchiveStep // the current table, with the rows of all its steps
	printedAt time.Time
}

func (p *progress) add(s maintenance.ArchiveStep) {
	switch {
	case s.InUse:
		fmt.Printf("%s is in use; run archive again\n", s.Partition)
		return
	case s.Partition != "":
		fmt.Printf("%s %s, all of whose rows are older than %s\n", p.verb("drop", "dropped"), s.Partition, timestamp(s.Before))
		return
	}
	if s.Table != p.table.Table {
		p.finish()
		p.table = s
	} else {
		p.table.Rows += s.Rows
	}
	for _, row := range s.Failed {
		fmt.Printf("%s %s stays: %v\n", row.Table, row.Key, row.Err)
	}
	if time.Since(p.printedAt) > progressEvery {
		fmt.Printf("%s so far\n", p.sum())
		p.printedAt = time.Now()
	}
}

// finish prints the sum of the current table.
func (p *progress) finish() {
	switch {
	case p.table.Table == "":
	case p.table.Rows == 0:
		fmt.Println(p.sum())
	default:
		fmt.Printf("%s that ended before %s\n", p.sum(), timestamp(p.table.Before))
	}
	p.table = maintenance.ArchiveStep{}
}

func (p *progress) sum() string {
	verb := p.verb("move", "moved")
	if p.table.Deleted {
		verb = p.verb("delete", "deleted")
	}
	return fmt.Sprintf("%s %d %s", verb, p.table.Rows, p.table.Table)
}

func (p *progress) verb(present, past string) string {
	if p.dryRun {
		return "would " + present
	}
	return past
}

func timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func parseArchiveArgs(args []string) (maintenance.ArchiveRun, error) {
	var run maintenance.ArchiveRun
	flags := flag.NewFlagSet("archive", flag.ContinueOnError)
	before := flags.String("before", "", "archive what ended before this `date` (UTC), such as 2026-01-31; without it RETENTION_DAYS and RETENTION_LOG_DAYS apply; nothing of the last day is archived")
	flags.BoolVar(&run.DryRun, "dry-run", false, "print what would be done; drop, move and delete nothing")
	if err := flags.Parse(args); err != nil {
		return run, err
	}
	if flags.NArg() > 0 {
		return run, fmt.Errorf("archive takes no %q; give a date as --before 2026-01-31", flags.Arg(0))
	}
	if *before == "" {
		return run, nil
	}
	var err error
	if run.Before, err = time.Parse(time.DateOnly, *before); err != nil || run.Before.IsZero() {
		return run, fmt.Errorf("--before must be a date such as 2026-01-31, not %q", *before)
	}
	return run, nil
}
