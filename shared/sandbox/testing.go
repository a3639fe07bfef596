package sandbox

import (
	"os"
	"path/filepath"
	"testing"
)

// must fails the test and stops it if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("sandbox: %v", err)
	}
}

// stopAtEnd calls stop at the end of the test. The test fails if stop returns an error.
func stopAtEnd(t testing.TB, stop func() error) {
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("sandbox: %v", err)
		}
	})
}

// StartProcess starts bin with the environment PATH, HOME, TMPDIR and env ("NAME=value"). At the end of
// the test it kills the process, and checks that the output shows no secret and no phone number (CheckLeaks).
func StartProcess(t testing.TB, bin string, env []string, args ...string) *Process {
	t.Helper()
	base := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}
	p, err := Start(Command{Path: bin, Args: args, Env: append(base, env...)})
	must(t, err)
	t.Cleanup(func() { CheckLeaks(t, "the output of "+filepath.Base(bin), p.Output()) })
	stopAtEnd(t, p.Kill)
	return p
}

// OnlyWithFaults skips a test that takes too long for make test, unless make faults runs it.
func OnlyWithFaults(t testing.TB) {
	t.Helper()
	if os.Getenv("SENDONCE_FAULT_SECONDS") == "" {
		t.Skip("only make faults runs this test")
	}
}

// Slow skips a test that takes seconds of processor time, except in make test TAGS=slow. Use it only if a faster test
// checks the same, or if no guarantee of Sendonce depends on the test.
func Slow(t testing.TB) {
	t.Helper()
	if !slowTests {
		t.Skip("only make test TAGS=slow runs this test")
	}
}
