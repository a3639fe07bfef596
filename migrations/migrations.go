// Package migrations brings a database to the schema that this binary expects.
// There are no down migrations. A released file is never edited or removed: Up refuses
// a database to which another version of the file was applied.
package migrations

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed [0-9][0-9][0-9][0-9]_*.sql
var files embed.FS

// monthsAhead is how many monthly partitions of the logs exist beyond this month's.
const monthsAhead = 3

type migration struct {
	version int
	name    string // the file's name
	sql     string
	sum     string // SHA-256 of the file, hex
}

// Up applies the files that conn's database lacks, one transaction per file. Then it creates
// the roles, sets the privileges of each role, and creates the log partitions of the coming
// months and the missing rows of upkeep. It returns the names of the applied files. Concurrent
// calls wait for one another, each at most a minute, or conn's lock_timeout if that is set.
// conn must not use a pooler, since the lock belongs to its session. If the history of the
// database is not a prefix of the files, Up returns an error.
func Up(ctx context.Context, conn *pgx.Conn, roles Roles) (applied []string, err error) {
	return up(ctx, conn, files, roles, makeJobs, makePartitions)
}

// Hash identifies the result of Up: it changes with every migration, setting of a role and privilege.
func Hash() (string, error) {
	migrations, err := load(files)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintln(sum, Roles{Hot: "hot", Read: "read", Admin: "admin", Retention: "retention"}.all(), strings.TrimSpace(grants))
	for _, m := range migrations {
		fmt.Fprintln(sum, m.name, m.sum)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// up is Up with other files. At its end it calls the functions finish, which need the tables of all files.
func up(ctx context.Context, conn *pgx.Conn, fsys fs.FS, roles Roles, finish ...func(context.Context, *pgx.Conn) error) (applied []string, err error) {
	migrations, err := load(fsys)
	if err != nil {
		return nil, err
	}
	if err := lock(ctx, conn); err != nil {
		return nil, fmt.Errorf("lock the migrations: %w", err)
	}
	defer func() {
		// A broken connection has released its lock already.
		if _, unlockErr := conn.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock($1)", lockID); unlockErr != nil && err == nil {
			err = fmt.Errorf("unlock the migrations: %w", unlockErr)
		}
	}()
	if err := checkEncoding(ctx, conn); err != nil {
		return nil, err
	}
	pending, err := pendingOf(ctx, conn, migrations)
	if err != nil {
		return nil, err
	}
	for _, m := range pending {
		if err := apply(ctx, conn, m); err != nil {
			return applied, fmt.Errorf("migration %s: %w", m.name, err)
		}
		applied = append(applied, m.name)
	}
	all := roles.all()
	if err := makeRoles(ctx, conn, all); err != nil {
		return applied, err
	}
	if err := grantAll(ctx, conn, all); err != nil {
		return applied, err
	}
	for _, f := range finish {
		err = errors.Join(err, f(ctx, conn))
	}
	return applied, err
}

// checkEncoding sets client_encoding to UTF8. It refuses a database with another encoding than UTF8: such a database cannot
// store all characters, or counts them in another way than Sendonce.
func checkEncoding(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "SET client_encoding = 'UTF8'"); err != nil { // the files are UTF-8
		return err
	}
	encoding := conn.PgConn().ParameterStatus("server_encoding")
	if encoding != "UTF8" {
		return fmt.Errorf("the database has the encoding %s, but must have UTF8: create it with ENCODING 'UTF8' TEMPLATE template0", encoding)
	}
	return nil
}

// makeJobs inserts the missing rows of upkeep. A job without its row is never run, and
// the functions can neither insert nor rename a row.
func makeJobs(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "INSERT INTO upkeep (what) VALUES ('maintenance'), ('events'), ('alerts') ON CONFLICT DO NOTHING"); err != nil {
		return fmt.Errorf("insert the jobs into upkeep: %w", err)
	}
	return nil
}

// load reads the files in order. Their versions must be 1, 2, 3 …
func load(fsys fs.FS) ([]migration, error) {
	names, _ := fs.Glob(fsys, "*.sql") // fails only for an invalid pattern
	fileName := regexp.MustCompile(`^[0-9]{4}_[a-z0-9_]+\.sql$`)
	var migrations []migration
	for _, name := range names {
		if !fileName.MatchString(name) {
			return nil, fmt.Errorf("migration %s: the name must have the form NNNN_words.sql", name)
		}
		version := len(migrations) + 1
		if next := fmt.Sprintf("%04d", version); name[:4] != next {
			return nil, fmt.Errorf("migration %s: the next number is %s, so renumber it or add the missing file", name, next)
		}
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", name, err)
		}
		sum := sha256.Sum256(text)
		migrations = append(migrations, migration{version, name, string(text), hex.EncodeToString(sum[:])})
	}
	return migrations, nil
}

const createHistory = `
CREATE TABLE IF NOT EXISTS schema_migrations (
	version    int PRIMARY KEY,
	name       text NOT NULL,
	sha256     text NOT NULL,
	applied_at timestamptz NOT NULL DEFAULT now()
)`

// pendingOf compares the database's history with the files and returns the files that
// were not applied.
func pendingOf(ctx context.Context, conn *pgx.Conn, migrations []migration) ([]migration, error) {
	if _, err := conn.Exec(ctx, createHistory); err != nil {
		return nil, fmt.Errorf("create schema_migrations: %w", err)
	}
	rows, err := conn.Query(ctx, "SELECT version, name, sha256 FROM schema_migrations ORDER BY version")
	if err != nil {
		return nil, fmt.Errorf("read schema_migrations: %w", err)
	}
	applied, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m migration, err error) {
		return m, row.Scan(&m.version, &m.name, &m.sum)
	})
	if err != nil {
		return nil, fmt.Errorf("read schema_migrations: %w", err)
	}
	for i, m := range applied {
		switch {
		case m.version > len(migrations):
			return nil, fmt.Errorf("the database is at version %d and this binary has %d: run the newer binary that migrated it",
				applied[len(applied)-1].version, len(migrations))
		case m.version != i+1:
			return nil, fmt.Errorf("the database has version %d without %d: restore schema_migrations from a backup", m.version, i+1)
		case m.name != migrations[i].name:
			return nil, fmt.Errorf("migration %s was applied but its file is missing and %s has its number: restore the file", m.name, migrations[i].name)
		case m.sum != migrations[i].sum:
			return nil, fmt.Errorf("migration %s was edited after it was applied: restore it and put the change into a new file", m.name)
		}
	}
	return migrations[len(applied):], nil
}

func apply(ctx context.Context, conn *pgx.Conn, m migration) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, m.sql); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "INSERT INTO schema_migrations (version, name, sha256) VALUES ($1, $2, $3)", m.version, m.name, m.sum)
		return err
	})
}

// makePartitions creates the log partitions of this month and of the coming months.
func makePartitions(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "SELECT make_log_partitions($1)", monthsAhead); err != nil {
		return fmt.Errorf("make log partitions: %w", err)
	}
	return nil
}
