package sandbox

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
)

// Dump writes a backup of a database with pg_dump. restore creates a new database from the backup with pg_restore, and
// returns the URL of the new database. The test is skipped if one of these programs is not installed.
func Dump(t testing.TB, url string) (restore func() string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "backup")
	runPostgresProgram(t, "pg_dump", "--format=custom", "--file="+file, url)
	return func() string {
		t.Helper()
		restored := NewEmptyDatabase(t)
		runPostgresProgram(t, "pg_restore", "--exit-on-error", "--dbname="+restored, file)
		return restored
	}
}

// runPostgresProgram runs a program from the directory of the Postgres binaries (findBinaries). It skips the test if the
// program is not there, and fails the test if the program fails.
func runPostgresProgram(t testing.TB, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	bin, err := findBinaries(ctx, 0)
	must(t, err)
	path := filepath.Join(bin.dir, name)
	if _, err := exec.LookPath(path); err != nil {
		t.Skipf("%s is not in %s: install PostgreSQL", name, bin.dir)
	}
	command := exec.CommandContext(ctx, path, args...)
	command.Env = serverEnv()
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, output)
	}
}
