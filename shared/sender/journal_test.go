package sender

import (
	"bytes"
	"context"
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
	"github.com/sendonce/sendonce/shared/sandbox"
)

func open(t *testing.T, path string) *journal {
	t.Helper()
	j, spoilt, err := openJournal(path, "app")
	require.NoError(t, err)
	require.Zero(t, spoilt)
	return j
}

func unknown(task string, claim api.ID) api.ReportRequest {
	return reportOf(api.ClaimedTask{TaskID: task, ClaimID: claim}, Result{}, time.Time{})
}

func sent(task string, claim api.ID) api.ReportRequest {
	return reportOf(api.ClaimedTask{TaskID: task, ClaimID: claim}, Result{Outcome: OK}, time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC))
}

func TestTheJournalKeepsTheLastReportOfEachAttempt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path)
	require.Empty(t, j.left())
	for _, r := range []api.ReportRequest{unknown("a", 1), unknown("b", 1), unknown("c", 1), unknown("a", 2), sent("b", 1), sent("c", 1)} {
		require.NoError(t, j.put(r))
	}
	j.strike(unknown("c", 1))
	require.NoError(t, j.close())

	for range 2 {
		j = open(t, path)
		require.Equal(t, []api.ReportRequest{unknown("a", 1), unknown("a", 2), sent("b", 1)}, j.left())
		require.NoError(t, j.close())
	}
}

func TestAJournalThatIsCutAnywhereIsReadUpToThere(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path)
	ends := []int{j.size}
	for _, task := range []string{"a", "b", "c"} {
		require.NoError(t, j.put(unknown(task, 1)))
		ends = append(ends, j.size)
	}
	require.NoError(t, j.close())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Len(t, whole, ends[3])
	for size := ends[0]; size <= len(whole); size++ {
		require.NoError(t, os.WriteFile(path, whole[:size], 0o600))
		j, spoilt, err := openJournal(path, "app")
		require.NoError(t, err)
		entries := 0
		for size >= ends[entries]-1 && entries < 3 && size >= ends[entries+1]-1 {
			entries++ // the line is whole without its end
		}
		require.Len(t, j.left(), entries, size)
		require.LessOrEqual(t, spoilt, 1)
		require.NoError(t, j.put(unknown("next", 1)), "it goes on behind what is whole")
		require.NoError(t, j.close())
		j = open(t, path)
		require.Len(t, j.left(), entries+1)
		require.NoError(t, j.close())
	}
}

func TestASpoiltLineCostsNoOther(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path)
	for _, task := range []string{"a", "b", "c"} {
		require.NoError(t, j.put(unknown(task, 1)))
	}
	require.NoError(t, j.close())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	whole = bytes.Replace(whole, []byte(`"b"`), []byte(`"B"`), 1)
	require.NoError(t, os.WriteFile(path, append(whole, make([]byte, 5000)...), 0o600))
	j, spoilt, err := openJournal(path, "app")
	require.NoError(t, err)
	require.Equal(t, 2, spoilt, "the changed one, and the zeros that a power cut leaves")
	require.Equal(t, []api.ReportRequest{unknown("a", 1), unknown("c", 1)}, j.left())
	require.NoError(t, j.close())
}

func TestAJournalBelongsToOneAppAndOneProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path)
	_, _, err := openJournal(path, "app")
	require.ErrorContains(t, err, "another sender is using it")
	require.NoError(t, j.close())
	_, _, err = openJournal(path, "other")
	require.ErrorContains(t, err, `belongs to the app "app"`)
	require.NoError(t, open(t, path).close())
}

func TestAClosedJournalIsFreeThoughAForkedChildHasItOpenStill(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path)
	child, err := syscall.Dup(int(j.lock.Fd())) // what a child has between its fork and its exec
	require.NoError(t, err)
	defer func() { require.NoError(t, syscall.Close(child)) }()
	require.NoError(t, j.close())
	_, _, err = openJournal(path, "other")
	require.ErrorContains(t, err, `belongs to the app "app"`)
	require.NoError(t, open(t, path).close())
}

func TestAFileThatIsNoJournalIsLeftAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "letter")
	for _, text := range []string{"Dear Sir,\n", "\x00\x00\x00"} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, _, err := openJournal(path, "app")
		require.ErrorContains(t, err, "no sender's journal")
		after, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, text, string(after))
	}
}

func TestTheJournalDoesNotGrow(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path)
	require.NoError(t, j.put(unknown("stays", 1)))
	var all sync.WaitGroup
	errs := make(chan error, 64)
	for n := range cap(errs) {
		all.Go(func() {
			for i := range 40 {
				r := unknown(fmt.Sprintf("%d-%d", n, i), 1)
				r.ErrorMessage = strings.Repeat("x", 500)
				if err := j.put(r); err != nil {
					errs <- err
					return
				}
				j.strike(r)
			}
		})
	}
	all.Wait()
	require.Empty(t, errs)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.LessOrEqual(t, info.Size(), int64(compactAt))
	require.NoError(t, j.close())
	j = open(t, path)
	require.Equal(t, []api.ReportRequest{unknown("stays", 1)}, j.left())
	require.NoError(t, j.close())
}

func TestAttemptsThatBeginAtOnceShareASync(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := &journal{writes: make(chan write)} // nobody writes yet
		for n := range 10 {
			go func() {
				if err := j.put(unknown("a", api.ID(n))); err != nil {
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		batch := j.gather(<-j.writes)
		require.Len(t, batch, 10)
		for _, w := range batch {
			w.synced <- nil
		}
	})
}

func TestASenderWhoseJournalFailsSendsNothingMore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	j := open(t, path)
	require.NoError(t, j.file.Close()) // as a disk that is full: every write fails
	reported := make(chan []api.ReportRequest, 10)
	service := newLastDesk(t, reported)
	s, err := New(Config{
		Client: service, AppID: "app", Journal: path, Log: sandbox.Log(t),
		Gateway: GatewayFunc(func(context.Context, Message) Result {
			t.Error("it was sent, and a restart would not know")
			return Result{}
		}),
	})
	require.NoError(t, err)
	err = newRun(t.Context(), s.cfg, j).work(nil)
	require.ErrorIs(t, err, os.ErrClosed)
	reports := <-reported
	require.Len(t, reports, 1)
	require.Equal(t, "released", reports[0].Outcome)
}
