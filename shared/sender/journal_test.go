package sender

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
)

func openTestJournal(t *testing.T, path string) *journal {
	t.Helper()
	j, corrupt, err := openJournal(path, "app")
	require.NoError(t, err)
	require.Zero(t, corrupt)
	return j
}

func unknownReport(task string, claim api.ID) api.ReportRequest {
	return reportOf(api.ClaimedTask{TaskID: task, ClaimID: claim}, Result{}, time.Time{})
}

func sentReport(task string, claim api.ID) api.ReportRequest {
	return reportOf(api.ClaimedTask{TaskID: task, ClaimID: claim}, Result{Outcome: OK}, time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC))
}

func TestJournalKeepsTheLastReportOfEachAttempt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j := openTestJournal(t, path)
	require.Empty(t, j.reports())
	for _, r := range []api.ReportRequest{unknownReport("a", 1), unknownReport("b", 1), unknownReport("c", 1), unknownReport("a", 2), sentReport("b", 1), sentReport("c", 1)} {
		require.NoError(t, j.put(r))
	}
	j.remove(unknownReport("c", 1))
	require.NoError(t, j.close())

	for range 2 {
		j = openTestJournal(t, path)
		require.Equal(t, []api.ReportRequest{unknownReport("a", 1), unknownReport("a", 2), sentReport("b", 1)}, j.reports())
		require.NoError(t, j.close())
	}
}

func TestTruncatedJournalKeepsWholeLines(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j := openTestJournal(t, path)
	ends := []int{j.size}
	for _, task := range []string{"a", "b", "c"} {
		require.NoError(t, j.put(unknownReport(task, 1)))
		ends = append(ends, j.size)
	}
	require.NoError(t, j.close())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Len(t, whole, ends[3])
	for size := ends[0]; size <= len(whole); size++ {
		require.NoError(t, os.WriteFile(path, whole[:size], 0o600))
		j, corrupt, err := openJournal(path, "app")
		require.NoError(t, err)
		entries := 0
		for entries < 3 && size >= ends[entries+1]-1 {
			entries++ // the last line is valid also without its line break
		}
		require.Len(t, j.reports(), entries, size)
		require.LessOrEqual(t, corrupt, 1)
		require.NoError(t, j.put(unknownReport("next", 1)), "new entries follow the complete lines")
		require.NoError(t, j.close())
		j = openTestJournal(t, path)
		require.Len(t, j.reports(), entries+1)
		require.NoError(t, j.close())
	}
}

func TestCorruptJournalLineIsSkipped(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j := openTestJournal(t, path)
	for _, task := range []string{"a", "b", "c"} {
		require.NoError(t, j.put(unknownReport(task, 1)))
	}
	require.NoError(t, j.close())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	whole = bytes.Replace(whole, []byte(`"b"`), []byte(`"B"`), 1)
	require.NoError(t, os.WriteFile(path, append(whole, make([]byte, 5000)...), 0o600))
	j, corrupt, err := openJournal(path, "app")
	require.NoError(t, err)
	require.Equal(t, 2, corrupt, "the changed line, and the zeros after the last line, as after a power failure")
	require.Equal(t, []api.ReportRequest{unknownReport("a", 1), unknownReport("c", 1)}, j.reports())
	require.NoError(t, j.close())
}

func TestJournalBelongsToOneAppAndProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j := openTestJournal(t, path)
	_, _, err := openJournal(path, "app")
	require.ErrorContains(t, err, "locked by another sender process")
	child, err := syscall.Dup(int(j.lock.Fd())) // a copy like that of a child process between fork and exec
	require.NoError(t, err)
	defer func() { require.NoError(t, syscall.Close(child)) }()
	require.NoError(t, j.close())
	_, _, err = openJournal(path, "other")
	require.ErrorContains(t, err, `belongs to the app "app"`)
	require.NoError(t, openTestJournal(t, path).close())
}

func TestOtherFilesAreNotOverwritten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "text")
	for _, text := range []string{"some text\n", "\x00\x00\x00"} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, _, err := openJournal(path, "app")
		require.ErrorContains(t, err, "not a sender journal")
		after, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, text, string(after))
	}
}

func TestJournalIsCompacted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j := openTestJournal(t, path)
	require.NoError(t, j.put(unknownReport("stays", 1)))
	var all sync.WaitGroup
	errs := make(chan error, 64)
	for n := range cap(errs) {
		all.Go(func() {
			for i := range 40 {
				r := unknownReport(fmt.Sprintf("%d-%d", n, i), 1)
				r.ErrorMessage = strings.Repeat("x", 500)
				if err := j.put(r); err != nil {
					errs <- err
					return
				}
				j.remove(r)
			}
		})
	}
	all.Wait()
	require.Empty(t, errs)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.LessOrEqual(t, info.Size(), int64(minCompactSize))
	require.NoError(t, j.close())
	j = openTestJournal(t, path)
	require.Equal(t, []api.ReportRequest{unknownReport("stays", 1)}, j.reports())
	require.NoError(t, j.close())
}

func TestConcurrentPutsAreOneBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := &journal{writes: make(chan journalWrite)} // its goroutine run is not started
		for n := range 10 {
			go func() {
				if err := j.put(unknownReport("a", api.ID(n))); err != nil {
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		batch := j.collectBatch(<-j.writes)
		require.Len(t, batch, 10)
		for _, w := range batch {
			w.synced <- nil
		}
	})
}

// RunWithBrokenJournal is Run with a journal to which every write fails, as on a full disk.
func (s *Sender) RunWithBrokenJournal(ctx context.Context) error {
	j, _, err := openJournal(s.cfg.Journal, s.cfg.AppID)
	if err != nil {
		return err
	}
	err = errors.Join(j.file.Close(), newRun(ctx, s.cfg, j).do(nil))
	_ = j.close() // fails, as the file is closed
	return err
}
