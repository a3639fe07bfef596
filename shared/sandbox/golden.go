package sandbox

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// RequireGolden fails the test if content, which was read from file, differs from generated. It prints the lines that
// differ, and command, which rewrites the file.
func RequireGolden(t testing.TB, file, content, generated, command string) {
	t.Helper()
	if content != generated {
		t.Fatalf("%s differs from the generated text (- file, + generated):\n%sIf the change is intended, run: %s", file, diff(t, content, generated), command)
	}
}

// diff returns the lines in which two texts differ.
func diff(t testing.TB, a, b string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, errors.Join(os.WriteFile(filepath.Join(dir, "a"), []byte(a), 0o600), os.WriteFile(filepath.Join(dir, "b"), []byte(b), 0o600)))
	cmd := exec.Command("diff", "-U0", "a", "b")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 1 { // 1 = the texts differ
		t.Fatalf("sandbox: diff: %v\n%s", err, out)
	}
	return string(out)
}
