package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The environment variables that RunShared passes to the test packages.
const (
	postgresVariable = "SANDBOX_POSTGRES" // the connection string of the server that all may use
	binariesVariable = "SANDBOX_BINARIES" // the directory of the binaries that all may start
	modelVariable    = "SANDBOX_MODEL"    // the data directory that initdb made, which private servers copy
)

// RunShared runs a command such as go test, and returns its exit code. It builds the packages with
// the import paths pkgs in the directory bin. The test packages that the command runs share these
// binaries, one Postgres, and a data directory, which a test that starts its own Postgres copies. A
// package that is tested without RunShared makes all that for itself.
func RunShared(ctx context.Context, bin string, pkgs []string, command ...string) (code int, err error) {
	if err := Compile(ctx, bin+"/", pkgs...); err != nil {
		return 1, err
	}
	for _, pkg := range pkgs {
		if err := setTimeByContent(filepath.Join(bin, binaryName(pkg))); err != nil {
			return 1, err
		}
	}
	server, err := StartPostgres(ctx, Options{ManyConnections: true})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()

	run := exec.Command(command[0], command[1:]...)
	run.Stdin, run.Stdout, run.Stderr = os.Stdin, os.Stdout, os.Stderr
	run.Env = append(os.Environ(), binariesVariable+"="+bin)
	if server.private { // not that of DATABASE_URL, which the tests read themselves
		model, modelErr := makeModel(ctx)
		if modelErr != nil {
			return 1, modelErr
		}
		defer func() { err = errors.Join(err, model.close()) }()
		run.Env = append(run.Env, postgresVariable+"="+server.base, modelVariable+"="+model.data())
	}
	var exit *exec.ExitError
	if err := run.Run(); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	} else if err != nil {
		return 1, err
	}
	return 0, nil
}

// makeModel makes the data directory of a server that is not started. Copying it takes
// 20 ms; initdb takes a second of CPU time.
func makeModel(ctx context.Context) (*serverDir, error) {
	onlyInitialise := func(ctx context.Context, p *Postgres) error {
		bin, err := findBinaries(ctx, 0) // of any version
		if err != nil {
			return err
		}
		return p.initialise(ctx, bin, false)
	}
	p, err := startPrivate(ctx, Options{}, onlyInitialise)
	if err != nil {
		return nil, err
	}
	return p.dir, nil
}

// modelFor returns the data directory that RunShared made, or "" if there is none or it is not of the version of bin.
func modelFor(bin binaries) string {
	dir := sharedSetting(modelVariable)
	if dir == "" {
		return ""
	}
	if major, err := os.ReadFile(filepath.Join(dir, "PG_VERSION")); err != nil || strings.TrimSpace(string(major)) != strconv.Itoa(bin.major) {
		return ""
	}
	return dir
}

// sharedSetting reads an environment variable of RunShared. With os.Getenv the value, which
// differs in each run, would be an input of the test, and go test could not use cached results.
func sharedSetting(name string) string {
	for _, pair := range os.Environ() {
		if value, found := strings.CutPrefix(pair, name+"="); found {
			return value
		}
	}
	return ""
}

// SharedEnv returns the environment variables with which a process uses the binaries and the data
// directory of RunShared. It returns none in a package that is tested alone.
func SharedEnv() (env []string) {
	for _, name := range []string{binariesVariable, modelVariable} {
		if value := sharedSetting(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// copyShared copies the binary of a package that RunShared has built. It returns false if it has not.
func copyShared(output, pkg string) (bool, error) {
	file := sharedBinary(pkg)
	if file == "" {
		return false, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return true, err
	}
	// A binary that is running cannot be overwritten.
	if err := os.Remove(output); err != nil && !errors.Is(err, os.ErrNotExist) {
		return true, err
	}
	return true, os.WriteFile(output, content, 0o755)
}

// sharedBinary returns the binary of a package that RunShared has built, or "". os.Stat
// makes it an input of the test: go test runs the test again if the binary has changed.
func sharedBinary(pkg string) string {
	dir := sharedSetting(binariesVariable)
	if dir == "" {
		return ""
	}
	file := filepath.Join(dir, binaryName(pkg))
	if _, err := os.Stat(file); err != nil {
		return ""
	}
	return file
}

// setTimeByContent sets the modification time of a file to one that depends only on its content.
// go build sets a new time even if the binary is unchanged, and go test treats a file with
// another time as changed.
func setTimeByContent(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	at := time.Unix(int64(binary.BigEndian.Uint32(sum[:4])>>2), 0) // from 1970 to 2004
	return os.Chtimes(file, at, at)
}

// binaryName returns the name that go build gives to the binary of a package.
func binaryName(pkg string) string {
	if parent, last := path.Split(pkg); len(last) > 1 && last[0] == 'v' && strings.Trim(last[1:], "0123456789") == "" {
		return path.Base(parent)
	}
	return path.Base(pkg)
}
