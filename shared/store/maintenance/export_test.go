package maintenance

import (
	"context"
	"time"
)

const (
	ArchiveRows      = archiveRows
	MaxSends         = maxSends
	CountSQL         = countSQL
	DropPartitionSQL = dropPartitionSQL
)

// Page is the statement that finds a page of old rows of a table, with its first key and the number of rows of a page.
type Page struct {
	Table, SQL, First string
	Rows              int
}

// Pages returns the Page of each table from which old rows are removed.
func Pages() (all []Page) {
	for _, a := range archivables {
		all = append(all, Page{a.table, a.page, a.first, a.rows})
	}
	return all
}

type ArchivePosition = archivePosition

// Reread returns the position after it was stored and read again.
func (p archivePosition) Reread() ArchivePosition { return parsePosition(p.stored()) }

// Next returns where the next step begins.
func (s ArchiveStep) Next() ArchivePosition { return s.position }

func (st *Store) RunArchive(ctx context.Context, run ArchiveRun, from ArchivePosition, step func(ArchiveStep) (stop bool)) error {
	return st.runArchive(ctx, run, from, step)
}

func (st *Store) CloseDaysUntil(ctx context.Context, until time.Time) (more bool, err error) {
	return st.closeDaysUntil(ctx, until)
}

func (st *Store) SetCountTime(limit time.Duration) { st.countTime = limit }
