package store

import (
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// BulkStatement is a statement for many rows. It has one array parameter for each column, so its text is the same for
// any number of rows.
type BulkStatement[R any] struct {
	// Text is the statement. It must read the rows from "unnest(@arrays) as t (@columns)". The method SQL replaces @arrays
	// with the parameters, @columns with the names of the columns, and @set with "name = t.name" of each column except the
	// first.
	Text    string
	Columns func() []BulkColumn[R]

	once    sync.Once // sets the fields below at the first use
	sql     string
	columns []BulkColumn[R]
}

// BulkColumn is a column of the rows of a BulkStatement.
type BulkColumn[R any] struct {
	name, sqlType string
	array         func(rows []R) any
}

// Array returns a BulkColumn. column is its name and SQL type, such as "retry_count smallint". value returns the value of
// the column in a row.
func Array[R, V any](column string, value func(row R) V) BulkColumn[R] {
	name, sqlType, _ := strings.Cut(column, " ")
	return BulkColumn[R]{name, sqlType, func(rows []R) any { return Column(rows, value) }}
}

// SQL returns the statement as it is sent to Postgres.
func (b *BulkStatement[R]) SQL() string {
	b.once.Do(func() {
		b.columns = b.Columns()
		var names, arrays, set []string
		for i, c := range b.columns {
			names = append(names, c.name)
			arrays = append(arrays, fmt.Sprintf("$%d::%s[]", i+1, c.sqlType))
			set = append(set, c.name+" = t."+c.name)
		}
		b.sql = strings.NewReplacer("@columns", strings.Join(names, ", "), "@arrays", strings.Join(arrays, ", "),
			"@set", strings.Join(set[1:], ", ")).Replace(b.Text)
	})
	return b.sql
}

// Queue adds the statement to a batch. If there are no rows, Queue adds nothing and returns nil.
func (b *BulkStatement[R]) Queue(batch *pgx.Batch, rows []R) *pgx.QueuedQuery {
	if len(rows) == 0 {
		return nil
	}
	sql := b.SQL()
	args := make([]any, len(b.columns))
	for i, c := range b.columns {
		args[i] = c.array(rows)
	}
	return batch.Queue(sql, args...)
}
