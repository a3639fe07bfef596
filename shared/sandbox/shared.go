package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// The environment variables that RunShared passes to the test packages.
const (
	postgresVariable = "SANDBOX_POSTGRES" // the connection string of the shared server
	binariesVariable = "SANDBOX_BINARIES" // the directory of the shared binaries
	dataVariable     = "SANDBOX_DATA"     // a data directory made by initdb, which private servers copy
)

// sharedSetting reads an environment variable of RunShared. It does not use os.Getenv: go test would then compare the
// value, which differs in each run, and would not use cached results.
func sharedSetting(name string) string {
	for _, pair := range os.Environ() {
		if value, found := strings.CutPrefix(pair, name+"="); found {
			return value
		}
	}
	return ""
}

// SharedEnv returns the environment variables with which a process uses the binaries and the data
// directory of RunShared. Without RunShared it returns none.
func SharedEnv() (env []string) {
	for _, name := range []string{binariesVariable, dataVariable} {
		if value := sharedSetting(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// sharedDataDir returns the data directory that RunShared made, or "" if there is none or if its major version is not
// that of bin.
func sharedDataDir(bin binaries) string {
	dir := sharedSetting(dataVariable)
	if major, err := os.ReadFile(filepath.Join(dir, "PG_VERSION")); err != nil || strings.TrimSpace(string(major)) != strconv.Itoa(bin.major) {
		return ""
	}
	return dir
}

// Compile builds packages with the flags and the commit of `make build`, so that tests and benchmarks run
// what is released. output is the path of the binary, or the directory of the binaries if output ends with a slash.
// If pkgs is one package that RunShared has built, Compile copies the binary of RunShared.
func Compile(ctx context.Context, output string, pkgs ...string) error {
	if len(pkgs) == 1 && !strings.HasSuffix(output, "/") {
		if bin := sharedBinary(pkgs[0]); bin != "" {
			return replaceFile(output, bin)
		}
	}
	stamp := "-ldflags=-s -w -X github.com/sendonce/sendonce/shared/fn.commit=" + commit(ctx)
	build := exec.CommandContext(ctx, "go", append([]string{"build", "-o", output, "-trimpath", "-gcflags=all=-dwarf=false", stamp}, pkgs...)...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", strings.Join(pkgs, " "), err, text)
	}
	return nil
}

// commit returns the same text as COMMIT in the Makefile; "" = there is no git, or no repository.
func commit(ctx context.Context) string {
	if set := os.Getenv("COMMIT"); set != "" {
		return set
	}
	described, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--exclude", "*").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(described))
}

// sharedBinary returns the path of the binary if RunShared has built the package, else "". Because of os.Stat, go test
// does not use a cached result if the binary has changed.
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

// binaryName returns the name that go build gives to the binary of a package.
func binaryName(pkg string) string {
	if parent, last := path.Split(pkg); len(last) > 1 && last[0] == 'v' && strings.Trim(last[1:], "0123456789") == "" {
		return path.Base(parent)
	}
	return path.Base(pkg)
}

// replaceFile copies the program at source to the path target. It first removes the file at target, because a running
// program cannot be overwritten.
func replaceFile(target, source string) error {
	content, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(target, content, 0o755)
}
