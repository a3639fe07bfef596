package maintenance

import (
	"context"
	"time"
)

const (
	ArchiveRows      = archiveRows
	CountSQL         = countSQL
	DropPartitionSQL = dropPartitionSQL
)

// Page is how the old rows of a table are found.
type Page struct {
	Table, SQL, First string
	Rows              int
}

// Pages has one page for each table that old rows leave.
func Pages() (all []Page) {
	for _, a := range archivables {
		all = append(all, Page{a.table, a.page, a.first, a.rows})
	}
	return all
}

type ArchivePlace = archivePlace

// Reread is the place as it is after it was stored.
func (p archivePlace) Reread() ArchivePlace { return parsePlace(p.stored()) }

// Next is where the run goes on after the step.
func (s ArchiveStep) Next() ArchivePlace { return s.place }

func (st *Store) RunArchive(ctx context.Context, run ArchiveRun, from ArchivePlace, step func(ArchiveStep) bool) error {
	return st.runArchive(ctx, run, from, step)
}

func (st *Store) CloseDaysUntil(ctx context.Context, until time.Time) (more bool, err error) {
	return st.closeDaysUntil(ctx, until)
}

func (st *Store) CountDone(ctx context.Context, day, from, to time.Time, limit time.Duration) error {
	return st.countDone(ctx, day, from, to, limit)
}

func (st *Store) SetCountTime(limit time.Duration) { st.countTime = limit }
