package sandbox

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	embedded "github.com/fergusstrange/embedded-postgres"
	"github.com/stretchr/testify/require"
)

// newDir returns the path of a directory that does not exist yet. The user of Postgres may enter its parent.
func newDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "so-test-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return filepath.Join(dir, "postgres")
}

func start(t *testing.T, o Options) *Postgres {
	t.Helper()
	p, err := StartPostgres(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Stop()) })
	return p
}

// createMarker commits a table; requireMarker requires that the table still exists.
func createMarker(t *testing.T, p *Postgres) {
	t.Helper()
	require.NoError(t, runSQL(t.Context(), p.base, "CREATE TABLE marker ()"))
}

func requireMarker(t *testing.T, p *Postgres) {
	t.Helper()
	require.NoError(t, runSQL(t.Context(), p.base, "SELECT FROM marker"))
}

func postmasterPid(t *testing.T, p *Postgres) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir.data(), "postmaster.pid"))
	require.NoError(t, err)
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	require.NoError(t, err)
	return pid
}

func TestTemporaryServerIsRemoved(t *testing.T) {
	Slow(t)
	t.Parallel()
	p := start(t, Options{})
	pid := postmasterPid(t, p)
	require.Equal(t, p.Process().Pid(), pid, "the child must be the postmaster, not a shell")
	require.NoError(t, p.Stop())
	require.NoDirExists(t, p.dir.root)
	require.NoDirExists(t, p.dir.socket)
	require.True(t, gone(pid)())
}

func TestServerListensOnlyOnAPrivateSocket(t *testing.T) {
	t.Parallel()
	p := start(t, Options{})
	info, err := os.Stat(p.dir.socket)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	var listens, encoding string
	conn := newConn(t, p.URL("postgres"))
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT current_setting('listen_addresses'), current_setting('server_encoding')").Scan(&listens, &encoding))
	require.Empty(t, listens)
	require.Equal(t, "UTF8", encoding)
}

func TestDirHasOneServer(t *testing.T) {
	Slow(t)
	t.Parallel()
	dir := newDir(t)
	p := start(t, Options{Dir: dir})
	_, err := StartPostgres(t.Context(), Options{Dir: dir})
	require.ErrorContains(t, err, "a Postgres is running in "+dir+" already, started by process "+strconv.Itoa(os.Getpid()))
	createMarker(t, p)
}

func TestKilledServerIsRecovered(t *testing.T) {
	t.Parallel()
	for name, durable := range map[string]bool{"durable": true, "for tests": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := Options{Dir: newDir(t), Durable: durable}
			p := start(t, o)
			busy := newConn(t, p.URL("postgres"))
			slept := make(chan error, 1)
			go func() {
				_, err := busy.Exec(context.Background(), "SELECT pg_sleep(2)")
				slept <- err
			}()
			createMarker(t, p)
			require.NoError(t, p.Process().Kill())
			require.NoError(t, p.Stop())
			requireMarker(t, start(t, o))
			require.Error(t, <-slept)
		})
	}
}

func TestServerEndsWithKilledParent(t *testing.T) {
	t.Parallel()

	t.Run("the server ends", func(t *testing.T) {
		t.Parallel()
		p, postmaster := startParent(t, "postgres", newDir(t))
		require.NoError(t, p.Kill())
		require.Eventually(t, gone(postmaster), 20*time.Second, 20*time.Millisecond)
	})
	t.Run("the next start ends the server", func(t *testing.T) {
		t.Parallel()
		dir := newDir(t)
		p, postmaster := startParent(t, "postgres", dir)
		require.NoError(t, p.Kill())
		next := start(t, Options{Dir: dir, Durable: true})
		require.True(t, gone(postmaster)())
		createMarker(t, next)
	})
	t.Run("a temporary directory is removed", func(t *testing.T) {
		t.Parallel()
		p, postmaster := startParent(t, "temporary")
		require.NoError(t, p.WaitFor(within(t, 10*time.Second), "/so-"))
		_, root, _ := strings.Cut(strings.TrimSpace(p.Output()), "\n")
		require.DirExists(t, root)
		require.NoError(t, p.Kill())
		require.Eventually(t, func() bool {
			_, err := os.Stat(root)
			return os.IsNotExist(err) && gone(postmaster)()
		}, time.Minute, 20*time.Millisecond)
	})
}

func TestOrphanIsShutDownBeforeStart(t *testing.T) {
	Slow(t)
	t.Parallel()
	o := Options{Dir: newDir(t), Durable: true}
	first := start(t, o)
	createMarker(t, first)
	// As if the process that has locked the directory and the watcher of its server were dead.
	require.NoError(t, syscall.Flock(int(first.dir.lock.Fd()), syscall.LOCK_UN))
	require.NoError(t, first.dir.lock.Close())
	first.dir.closed = true
	requireMarker(t, start(t, o))
	require.Zero(t, first.Process().ExitCode())
}

func TestStalePIDOfOtherProcessIsIgnored(t *testing.T) {
	Slow(t)
	t.Parallel()
	o := Options{Dir: newDir(t), Durable: true}
	p := start(t, o)
	createMarker(t, p)
	require.NoError(t, p.Process().Kill())
	pidFile := filepath.Join(p.dir.data(), "postmaster.pid")
	text, err := os.ReadFile(pidFile)
	require.NoError(t, err)
	require.NoError(t, p.Stop())

	otherProcess := exec.Command("sleep", "100")
	otherProcess.SysProcAttr = &syscall.SysProcAttr{Credential: p.dir.runAs}
	otherProcess.Dir = "/"
	require.NoError(t, otherProcess.Start())
	defer otherProcess.Wait()
	defer otherProcess.Process.Kill()
	_, rest, _ := bytes.Cut(text, []byte("\n"))
	stale := append([]byte(strconv.Itoa(otherProcess.Process.Pid)+"\n"), rest...)
	require.NoError(t, os.WriteFile(pidFile, stale, 0o600))

	requireMarker(t, start(t, o))
	require.False(t, gone(otherProcess.Process.Pid)(), "the other process still runs")
}

// A user who may open a file may also lock it.
func TestOtherUsersCannotLockTheFile(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "lock")
	f, err := LockFile(name, "a Postgres")
	require.NoError(t, err)
	defer f.Close()
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	_, err = LockFile(name, "a Postgres")
	require.ErrorContains(t, err, "a Postgres is running", "the owner of the file can open it, and cannot lock it twice")
}

func TestServerStartsInDirWithUnusableSocketPath(t *testing.T) {
	t.Parallel()
	for name, part := range map[string]string{
		"too long":             strings.Repeat("long", 40),
		"with special letters": `a, "b" 'c' ö%20`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := Options{Dir: filepath.Join(newDir(t), part)}
			p := start(t, o)
			createMarker(t, p)
			require.NoError(t, p.Process().Kill())
			require.NoError(t, p.Stop())
			requireMarker(t, start(t, o))
		})
	}
}

func TestInaccessibleDirIsReplaced(t *testing.T) {
	Slow(t)
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root runs Postgres as another user")
	}
	inaccessible := newDir(t)
	require.NoError(t, os.MkdirAll(inaccessible, 0o700))
	o := Options{Dir: filepath.Join(inaccessible, "postgres"), Durable: true}
	p := start(t, o)
	createMarker(t, p)
	require.NoError(t, p.Stop())
	movedTo, err := os.ReadFile(filepath.Join(o.Dir, "moved-to"))
	require.NoError(t, err)
	root := strings.TrimSpace(string(movedTo))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
	require.DirExists(t, filepath.Join(root, "data"))
	requireMarker(t, start(t, o))
}

func TestStartErrors(t *testing.T) {
	t.Parallel()

	t.Run("data of another version", func(t *testing.T) {
		t.Parallel()
		dir := newDir(t)
		p := start(t, Options{Dir: dir})
		require.NoError(t, p.Stop())
		require.NoError(t, os.WriteFile(filepath.Join(p.dir.data(), "PG_VERSION"), []byte("12\n"), 0o600))
		_, err := StartPostgres(t.Context(), Options{Dir: dir})
		require.ErrorContains(t, err, "the data was written by PostgreSQL 12, which is not on this machine")
	})
	t.Run("a socket path that is no directory", func(t *testing.T) {
		t.Parallel()
		dir := newDir(t)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "socket"), nil, 0o600))
		_, err := StartPostgres(t.Context(), Options{Dir: dir})
		require.ErrorContains(t, err, filepath.Join(dir, "socket")+" exists, but it is not a directory of user")
	})
}

func TestDatabaseURLNamesTheServer(t *testing.T) {
	p := start(t, Options{})
	for form, text := range map[string]string{
		"a URL":               p.URL("postgres"),
		"keywords and values": "host=" + p.dir.socket + " user=" + Owner + " dbname=postgres",
	} {
		t.Run(form, func(t *testing.T) {
			t.Setenv("DATABASE_URL", text)
			external := start(t, Options{})
			require.Nil(t, external.Process())
			require.NoError(t, runSQL(t.Context(), external.base, `CREATE DATABASE "it's"`))
			require.Equal(t, "it's", newConn(t, external.URL("it's")).Config().Database)
			require.NoError(t, external.Stop())
			require.NoError(t, runSQL(t.Context(), external.base, `DROP DATABASE "it's" WITH (FORCE)`), "the server is still running")
		})
	}
}

func TestPostgresBinNamesTheServerPrograms(t *testing.T) {
	ctx := t.Context()
	found, err := findBinaries(ctx, 0)
	require.NoError(t, err)
	t.Setenv("POSTGRES_BIN", found.dir)
	b, err := findBinaries(ctx, found.major)
	require.NoError(t, err)
	require.Equal(t, found, b)

	_, err = findBinaries(ctx, found.major+1)
	require.ErrorContains(t, err, "unset POSTGRES_BIN or remove the data")
	t.Setenv("POSTGRES_BIN", t.TempDir())
	_, err = findBinaries(ctx, 0)
	require.ErrorContains(t, err, "must be a directory with postgres and initdb")
	old := t.TempDir()
	for _, program := range []string{"postgres", "initdb"} {
		require.NoError(t, os.WriteFile(filepath.Join(old, program), []byte("#!/bin/sh\necho 'postgres (PostgreSQL) 13.1'\n"), 0o755))
	}
	t.Setenv("POSTGRES_BIN", old)
	_, err = findBinaries(ctx, 0)
	require.ErrorContains(t, err, "has PostgreSQL 13: 14 or later is needed")
}

// testdata/postgres.txz contains bin/postgres, bin/initdb and bin/pg_ctl. They are shell scripts; bin/postgres prints a
// version.
func TestServerIsDownloadedOnce(t *testing.T) {
	t.Parallel()
	txz, err := os.ReadFile("testdata/postgres.txz")
	require.NoError(t, err)
	var jar bytes.Buffer
	archive := zip.NewWriter(&jar)
	entry, err := archive.Create("postgres.txz")
	require.NoError(t, err)
	_, err = entry.Write(txz)
	require.NoError(t, err)
	require.NoError(t, archive.Close())
	sum := sha256.Sum256(jar.Bytes())
	var requests []string
	repository := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests = append(requests, r.URL.Path)
		if strings.HasSuffix(r.URL.Path, ".sha256") {
			_, _ = w.Write([]byte(hex.EncodeToString(sum[:])))
			return
		}
		_, _ = w.Write(jar.Bytes())
	}))
	cache := t.TempDir()
	from := embedded.DefaultConfig().BinaryRepositoryURL(repository.URL)

	b, err := fetch(t.Context(), from, cache)
	require.NoError(t, err)
	require.Equal(t, binaries{filepath.Join(cache, "postgres-"+string(fetchVersion), "bin"), 17}, b)
	require.Len(t, requests, 2)
	repository.Close()
	again, err := fetch(t.Context(), from, cache)
	require.NoError(t, err)
	require.Equal(t, b, again)
	entries, err := os.ReadDir(cache)
	require.NoError(t, err)
	require.Len(t, entries, 1, "temporary directories are removed")

	_, err = fetch(t.Context(), from, t.TempDir())
	require.ErrorContains(t, err, "unable to connect")
}
