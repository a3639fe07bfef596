package sweep

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store"
)

// progressEvery is how often Archive says how far it is.
const progressEvery = 5 * time.Second

// Archive is the word archive: it does at once, and tells, what sweep does for a
// moment with each safety tick. It may run beside any number of them.
func Archive(ctx context.Context, env *fn.Env, args []string) error {
	run, err := archiveRun(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case env.DB() == nil:
		return errors.New("DATABASE_URL is not set; give the URL that the functions have")
	}
	verbs := map[bool][2]string{false: {"moved", "dropped"}, true: {"would move", "would drop"}}[run.DryRun]
	moved, told := 0, time.Now()
	var before time.Time
	for step, err := range env.DB().Archive(ctx, run) {
		if err != nil {
			fmt.Printf("%s %d tasks\n", verbs[0], moved)
			return err
		}
		switch {
		case step.InUse:
			fmt.Printf("%s is in use; run archive again\n", step.Partition)
		case step.Partition != "":
			fmt.Printf("%s %s, all of whose rows are older than %s\n", verbs[1], step.Partition, step.Before.UTC().Format(time.RFC3339))
		default:
			moved, before = moved+step.Tasks, step.Before
		}
		if time.Since(told) > progressEvery {
			fmt.Printf("%s %d tasks so far\n", verbs[0], moved)
			told = time.Now()
		}
	}
	switch {
	case !before.IsZero():
		fmt.Printf("%s %d tasks that were finished before %s\n", verbs[0], moved, before.UTC().Format(time.RFC3339))
	case run.Before.IsZero() && env.Config.RetentionDays == 0:
		fmt.Println("RETENTION_DAYS is 0: no task is archived without --before")
	default:
		fmt.Println("no task is old enough")
	}
	return nil
}

func archiveRun(args []string) (store.ArchiveRun, error) {
	var run store.ArchiveRun
	flags := flag.NewFlagSet("archive", flag.ContinueOnError)
	before := flags.String("before", "", "take what is older than this `date`, as 2026-01-31 (UTC), whatever RETENTION_DAYS and RETENTION_LOG_DAYS say; nothing of the last day is taken")
	flags.BoolVar(&run.DryRun, "dry-run", false, "tell what would be done, and do nothing")
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
