package sandbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const hello = "github.com/sendonce/sendonce/shared/sandbox/testdata/hello"

func TestRunSharedSharesServerBinariesAndData(t *testing.T) {
	t.Setenv(parentVariable, "shared")
	self, err := os.Executable()
	require.NoError(t, err)
	code, err := RunShared(t.Context(), t.TempDir(), []string{hello}, self)
	require.NoError(t, err)
	require.Equal(t, 7, code)
}

// useShared is the command of the test. It returns 7 if the server, the binary and the data directory can be used.
func useShared() int {
	server, err := shared.sharedServer()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if err := runSQL(context.Background(), server.base, "SELECT"); err != nil || server.Process() != nil {
		fmt.Println("the server is not that of RunShared:", err)
		return 1
	}
	if bin := sharedBinary(hello); filepath.Base(bin) != "hello" {
		fmt.Printf("the binary is %q\n", bin)
		return 1
	}
	private, err := StartPostgres(context.Background(), Options{})
	if err != nil {
		fmt.Println("a copy does not start:", err)
		return 1
	}
	defer private.Stop()
	if _, err := os.Stat(filepath.Join(sharedSetting(dataVariable), "PG_VERSION")); err != nil {
		fmt.Println(err)
		return 1
	}
	return 7
}

func TestRunSharedReturnsErrorsOfItsCleanup(t *testing.T) {
	t.Parallel()
	fileInPlaceOfDirectory := `dir=$(dirname "$SANDBOX_DATA") && rm -r "$dir" && touch "$dir"`
	code, err := RunShared(t.Context(), t.TempDir(), []string{hello}, "sh", "-c", fileInPlaceOfDirectory)
	require.ErrorContains(t, err, "not a directory")
	require.Zero(t, code)
}

func TestBinaryTimeDependsOnContentOnly(t *testing.T) {
	t.Parallel()
	times := map[string]bool{}
	for i, content := range []string{"one", "one", "two"} {
		file := filepath.Join(t.TempDir(), fmt.Sprint(i))
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		require.NoError(t, setTimeByContent(file))
		info, err := os.Stat(file)
		require.NoError(t, err)
		times[content+info.ModTime().String()] = true
	}
	require.Len(t, times, 2)
}
