package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	embedded "github.com/fergusstrange/embedded-postgres"
)

const (
	oldestMajor   = 14           // the oldest version that Sendonce supports
	fetchVersion  = embedded.V17 // the version to download
	installAdvice = "install it (Debian: apt-get install postgresql; macOS: brew install postgresql@17) or set DATABASE_URL"
)

// packageDirs are the directories, outside of the PATH, in which packages install Postgres.
var packageDirs = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// binaries is a directory with postgres and initdb.
type binaries struct {
	dir   string
	major int
}

// binVariable is the environment variable that names a directory with binaries. If it is set, no other binaries are
// used.
const binVariable = "POSTGRES_BIN"

// findBinaries returns the binaries of POSTGRES_BIN, else installed binaries, else downloaded binaries.
// major is the version that wrote the data; 0 = any.
func findBinaries(ctx context.Context, major int) (binaries, error) {
	if dir := os.Getenv(binVariable); dir != "" {
		return inspectChosen(ctx, dir, major)
	}
	all := installed(ctx)
	for _, b := range all {
		if b.major >= oldestMajor && (major == 0 || major == b.major) {
			return b, nil
		}
	}
	if major != 0 && strconv.Itoa(major) != majorOf(string(fetchVersion)) {
		return binaries{}, fmt.Errorf("the data was written by PostgreSQL %d, which is not on this machine: install it or remove the data", major)
	}
	cache, err := cacheDir()
	if err != nil {
		return binaries{}, err
	}
	b, err := fetch(ctx, embedded.DefaultConfig(), cache)
	if err != nil {
		unsuitable := ""
		for _, b := range all {
			unsuitable += fmt.Sprintf(" (%s has %d)", b.dir, b.major)
		}
		return binaries{}, fmt.Errorf("no suitable PostgreSQL on this machine%s: %d or later is needed, or the version that wrote the data; none could be downloaded (%w): %s",
			unsuitable, oldestMajor, err, installAdvice)
	}
	return b, nil
}

// inspectChosen returns the binaries in the directory of POSTGRES_BIN, or why they cannot be used.
func inspectChosen(ctx context.Context, dir string, major int) (binaries, error) {
	b, err := inspect(ctx, dir)
	switch {
	case err != nil:
		return binaries{}, fmt.Errorf("%s=%s must be a directory with postgres and initdb: %w", binVariable, dir, err)
	case b.major < oldestMajor:
		return binaries{}, fmt.Errorf("%s=%s has PostgreSQL %d: %d or later is needed", binVariable, dir, b.major, oldestMajor)
	case major != 0 && major != b.major:
		return binaries{}, fmt.Errorf("the data was written by PostgreSQL %d, and %s=%s has %d: unset %[2]s or remove the data",
			major, binVariable, dir, b.major)
	}
	return b, nil
}

// installed lists the binaries on this machine: those on the PATH, then the packaged ones, newest first.
func installed(ctx context.Context) []binaries {
	var packaged []binaries
	for _, pattern := range packageDirs {
		dirs, _ := filepath.Glob(pattern) // fails on a malformed pattern only
		for _, dir := range dirs {
			if b, err := inspect(ctx, dir); err == nil {
				packaged = append(packaged, b)
			}
		}
	}
	slices.SortStableFunc(packaged, func(a, b binaries) int { return b.major - a.major })

	path, err := exec.LookPath("postgres")
	if err != nil {
		return packaged
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return packaged
	}
	b, err := inspect(ctx, filepath.Dir(path))
	if err != nil {
		return packaged
	}
	return append([]binaries{b}, packaged...)
}

// inspect returns the binaries in dir with their version. It returns an error if initdb or postgres is missing.
func inspect(ctx context.Context, dir string) (binaries, error) {
	if _, err := exec.LookPath(filepath.Join(dir, "initdb")); err != nil {
		return binaries{}, err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return binaries{}, err
	}
	major, err := strconv.Atoi(majorOf(string(out)))
	if err != nil {
		return binaries{}, fmt.Errorf("%s/postgres --version printed %q", dir, out)
	}
	return binaries{dir: dir, major: major}, nil
}

// majorOf returns the first number in a version text, or "".
func majorOf(version string) string { return regexp.MustCompile(`[0-9]+`).FindString(version) }

// cacheDir returns the directory for downloads, which the user that runs Postgres may enter.
func cacheDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache/sendonce", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "sendonce"), nil
}

// fetch downloads binaries into cache, unless cache has them. The library unpacks the binaries only when it starts a
// server, and as root no server starts. So fetch starts a server on a data directory that no server accepts: the start
// always fails, and the unpacked binaries remain.
func fetch(ctx context.Context, from embedded.Config, cache string) (binaries, error) {
	final := filepath.Join(cache, "postgres-"+string(fetchVersion))
	if b, err := inspect(ctx, filepath.Join(final, "bin")); err == nil {
		return b, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return binaries{}, err
	}
	work, err := os.MkdirTemp(cache, "fetch-")
	if err != nil {
		return binaries{}, err
	}
	defer os.RemoveAll(work)
	unpacked, noData := filepath.Join(work, "unpacked"), filepath.Join(work, "no-data")
	err = errors.Join(os.Mkdir(noData, 0o700), os.WriteFile(filepath.Join(noData, "PG_VERSION"), []byte(majorOf(string(fetchVersion))), 0o600))
	if err != nil {
		return binaries{}, err
	}
	server := embedded.NewDatabase(from.Version(fetchVersion).Port(0).Logger(io.Discard).
		CachePath(work).RuntimePath(filepath.Join(work, "run")).BinariesPath(unpacked).DataPath(noData))
	startErr := server.Start()
	if startErr == nil {
		return binaries{}, errors.Join(errors.New("a server started without data"), server.Stop())
	}
	if _, err := inspect(ctx, filepath.Join(unpacked, "bin")); err != nil {
		return binaries{}, startErr
	}
	if err := errors.Join(os.Chmod(unpacked, 0o755), os.RemoveAll(final)); err != nil {
		return binaries{}, err
	}
	renameErr := os.Rename(unpacked, final) // also fails if another process was faster; then final is usable
	b, err := inspect(ctx, filepath.Join(final, "bin"))
	if err != nil {
		return binaries{}, errors.Join(renameErr, err)
	}
	return b, nil
}
