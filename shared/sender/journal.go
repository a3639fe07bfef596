package sender

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/sendonce/sendonce/shared/api"
)

const (
	minCompactSize = 1 << 20 // bytes; a smaller file is not compacted
	maxBatch       = 1000    // limit of the entries written with one fsync
)

// journal stores a report on disk for each open attempt. An attempt is open from before its send until the server has
// accepted or permanently refused its report. The next run of the sender sends the reports that are left.
//
// The journal is an append-only log in which the last report of an attempt is valid. An attempt's first report, with
// the outcome unknown, is synced to disk before the message is sent; the second, with the outcome, before it is sent to
// the server. Each line has a checksum, because after a crash the data written after the last sync is undefined. The
// log is compacted when it grows, so the number of open attempts limits its size.
type journal struct {
	path    string
	app     string
	lock    *os.File
	writes  chan journalWrite
	running sync.WaitGroup

	// From the first put or remove until the end of the goroutine run, only that goroutine accesses the fields below.
	file      *os.File
	open      map[attemptID]api.ReportRequest // the last report of each open attempt
	size      int                             // of the log in bytes
	compactAt int                             // above this size, the log is compacted
	err       error                           // of the first failed write: later writes fail too, because the content of the file is unknown
}

// attemptID identifies an attempt. The claim_id alone does not: tasks that are claimed together share it.
type attemptID struct {
	task  string
	claim int64
}

// journalEntry is a line of the log: the report of an attempt or, if Settled, the end of the attempt.
type journalEntry struct {
	Report  api.ReportRequest `json:"report"`
	Settled bool              `json:"settled,omitempty"`
}

// journalHeader is the first line of the log.
type journalHeader struct {
	Journal int    `json:"sendonce_journal"` // format version
	AppID   string `json:"app_id"`
}

const journalVersion = 1

type journalWrite struct {
	journalEntry
	synced chan<- error // receives the result of the sync; nil = nobody waits, and the entry may stay unsynced
}

// openJournal opens or creates the journal of an app and locks it for this process. corrupt is the number of damaged
// lines, which it skips.
func openJournal(path, app string) (j *journal, corrupt int, err error) {
	j = &journal{path: path, app: app, open: map[attemptID]api.ReportRequest{}, writes: make(chan journalWrite)}
	if j.lock, err = lockFile(path + ".lock"); err != nil {
		return nil, 0, fmt.Errorf("journal %s: %w", path, err)
	}
	if corrupt, err = j.read(); err == nil {
		err = j.compact()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("journal %s: %w", path, errors.Join(err, unlockFile(j.lock)))
	}
	j.running.Go(j.run)
	return j, corrupt, nil
}

// lockFile opens or creates a file, and locks it until unlockFile or the end of the process. Nobody may remove the file,
// because another process could then create and lock a new one.
func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errors.New("locked by another sender process")
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// unlockFile releases the lock and closes the file. Closing alone is not enough: a child process between fork and
// exec has a copy of the descriptor, which keeps the lock.
func unlockFile(file *os.File) error {
	return errors.Join(syscall.Flock(int(file.Fd()), syscall.LOCK_UN), file.Close())
}

// read loads the open reports. It skips corrupt lines: the server settles the tasks of these attempts when their leases
// end.
func (j *journal) read() (corrupt int, err error) {
	raw, err := os.ReadFile(j.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(raw) == 0 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	first, rest, _ := bytes.Cut(raw, []byte("\n"))
	var h journalHeader
	if !decodeLine(first, &h) || h.Journal != journalVersion {
		return 0, fmt.Errorf("the file is not a sender journal of version %d", journalVersion)
	}
	if h.AppID != j.app {
		return 0, fmt.Errorf("the file belongs to the app %q: use a separate journal file for each app", h.AppID)
	}
	for line := range bytes.Lines(rest) {
		var e journalEntry
		if !decodeLine(bytes.TrimSuffix(line, []byte("\n")), &e) {
			corrupt++
			continue
		}
		j.apply(e)
	}
	return corrupt, nil
}

func (j *journal) apply(e journalEntry) {
	id := attemptID{e.Report.TaskID, int64(e.Report.ClaimID)}
	if e.Settled {
		delete(j.open, id)
	} else {
		j.open[id] = e.Report
	}
}

// reports returns the open reports, sorted by task. It must be called before the first put or remove, because the
// goroutine run then changes them.
func (j *journal) reports() []api.ReportRequest {
	return slices.SortedFunc(maps.Values(j.open), func(a, b api.ReportRequest) int {
		return cmp.Or(cmp.Compare(a.TaskID, b.TaskID), cmp.Compare(a.ClaimID, b.ClaimID))
	})
}

// put stores the report of an attempt, which replaces the attempt's earlier report, and returns after the sync to disk.
func (j *journal) put(r api.ReportRequest) error {
	synced := make(chan error, 1)
	j.writes <- journalWrite{journalEntry{Report: r}, synced}
	if err := <-synced; err != nil {
		return fmt.Errorf("journal %s: %w", j.path, err)
	}
	return nil
}

// remove deletes the report of an attempt and does not wait for the disk, so after a crash the attempt may be reported
// again.
func (j *journal) remove(r api.ReportRequest) {
	j.writes <- journalWrite{journalEntry: journalEntry{Report: api.ReportRequest{TaskID: r.TaskID, ClaimID: r.ClaimID}, Settled: true}}
}

// close waits for the last writes, and unlocks the journal. No method may be called after close.
func (j *journal) close() error {
	close(j.writes)
	j.running.Wait()
	if err := errors.Join(j.file.Close(), unlockFile(j.lock)); err != nil {
		return fmt.Errorf("journal %s: %w", j.path, err)
	}
	return nil
}

// run writes entries to the log until the journal is closed. Entries that arrive during a sync share the next sync.
func (j *journal) run() {
	for first := range j.writes {
		batch := j.collectBatch(first)
		if j.err == nil {
			j.err = j.appendBatch(batch)
		}
		for _, w := range batch {
			if w.synced != nil {
				w.synced <- j.err
			}
		}
	}
}

// collectBatch returns first and the entries that are already queued behind it.
func (j *journal) collectBatch(first journalWrite) []journalWrite {
	batch := []journalWrite{first}
	for len(batch) < maxBatch {
		select {
		case w, more := <-j.writes:
			if !more {
				return batch
			}
			batch = append(batch, w)
		default:
			return batch
		}
	}
	return batch
}

// appendBatch appends entries to the log. If the log would grow too large, it compacts the log instead: the compacted
// log contains the effect of the entries.
func (j *journal) appendBatch(batch []journalWrite) error {
	var lines []byte
	mustSync := false
	for _, w := range batch {
		line, err := encodeLine(w.journalEntry)
		if err != nil {
			return err
		}
		lines = append(lines, line...)
		mustSync = mustSync || w.synced != nil
		j.apply(w.journalEntry)
	}
	if j.size+len(lines) > j.compactAt {
		return j.compact()
	}
	if _, err := j.file.Write(lines); err != nil {
		return err
	}
	j.size += len(lines)
	if mustSync {
		return j.file.Sync()
	}
	return nil
}

// compact replaces the log with a synced log that contains only the open reports.
func (j *journal) compact() error {
	lines, err := encodeLine(journalHeader{journalVersion, j.app})
	if err != nil {
		return err
	}
	for _, r := range j.open {
		line, err := encodeLine(journalEntry{Report: r})
		if err != nil {
			return err
		}
		lines = append(lines, line...)
	}
	file, err := replaceFile(j.path, lines)
	if err != nil {
		return err
	}
	old := j.file
	j.file, j.size, j.compactAt = file, len(lines), max(minCompactSize, 2*len(lines))
	if old != nil {
		return old.Close()
	}
	return nil
}

// replaceFile atomically replaces the file at path by a synced file, and returns the new file open for appending.
func replaceFile(path string, text []byte) (*os.File, error) {
	temporary := path + ".new"
	file, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = file.Write(text)
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

const checksumLen = 8

func checksum(text []byte) string {
	return fmt.Sprintf("%0*x", checksumLen, crc32.ChecksumIEEE(text))
}

func encodeLine(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return []byte(checksum(text) + " " + string(text) + "\n"), nil
}

// decodeLine decodes a line and reports whether it is complete and its checksum is correct.
func decodeLine(line []byte, v any) bool {
	sum, text, found := bytes.Cut(line, []byte(" "))
	return found && string(sum) == checksum(text) && json.Unmarshal(text, v) == nil
}
