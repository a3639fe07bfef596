package sender

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/sendonce/sendonce/shared/api"
)

const (
	compactSize = 1 << 20 // bytes
	maxBatch    = 1000    // entries with one sync
)

// journal has on disk the report of each attempt that was begun and whose report is not answered: what the next
// start must report if the process dies now.
//
// It is a log of reports, of which the last one for an attempt is valid. Each line has a checksum, as the data
// after the last sync is undefined after a crash; nothing is sent or reported before its line is synced. The log
// is rewritten when it has grown, so its size is bounded by the number of open attempts.
type journal struct {
	path   string
	app    string
	lock   *os.File
	writes chan write
	writer sync.WaitGroup

	// The fields below belong to the goroutine run.
	file    *os.File
	open    map[attemptID]api.ReportRequest
	size    int
	compact int   // the size at which to rewrite
	err     error // of the first failed write; after it the content of the file is unknown
}

// attemptID identifies an attempt. Tasks claimed together share a claim_id.
type attemptID struct {
	task  string
	claim int64
}

// entry is a line of the log: the report of an attempt, or that it is answered.
type entry struct {
	Report  api.ReportRequest `json:"report"`
	Settled bool              `json:"settled,omitempty"`
}

// header is the first line of the log.
type header struct {
	Journal int    `json:"sendonce_journal"` // the format's version
	AppID   string `json:"app_id"`
}

const journalVersion = 1

type write struct {
	entry
	synced chan<- error // gets the result after the sync; nil = the entry may be lost
}

// openJournal opens or creates the journal of an app, and locks it for this process. corrupt is the number of
// lines that could not be read.
func openJournal(path, app string) (j *journal, corrupt int, err error) {
	j = &journal{path: path, app: app, open: map[attemptID]api.ReportRequest{}, writes: make(chan write)}
	if j.lock, err = lockFile(path + ".lock"); err != nil {
		return nil, 0, fmt.Errorf("journal %s: %w", path, err)
	}
	if corrupt, err = j.read(); err == nil {
		err = j.rewrite()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("journal %s: %w", path, errors.Join(err, unlockFile(j.lock)))
	}
	j.writer.Go(j.run)
	return j, corrupt, nil
}

// lockFile takes a lock that ends with the process. The file must not be removed: another process could then
// create and lock a new one.
func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errors.New("another sender is using it")
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// unlockFile releases a lock at once. Closing the file is not enough: a child process between fork and exec has
// a copy of the descriptor, which keeps the lock.
func unlockFile(file *os.File) error {
	return errors.Join(syscall.Flock(int(file.Fd()), syscall.LOCK_UN), file.Close())
}

// read fills j.open. It skips corrupt lines: the server settles such an attempt when its lease ends.
func (j *journal) read() (corrupt int, err error) {
	raw, err := os.ReadFile(j.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(raw) == 0 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	first, rest, _ := bytes.Cut(raw, []byte("\n"))
	var h header
	if !decodeLine(first, &h) || h.Journal != journalVersion {
		return 0, errors.New("the file is not a journal of a sender, or of another version")
	}
	if h.AppID != j.app {
		return 0, fmt.Errorf("it belongs to the app %q: give each app its own", h.AppID)
	}
	for line := range bytes.Lines(rest) {
		var e entry
		if !decodeLine(bytes.TrimSuffix(line, []byte("\n")), &e) {
			corrupt++
			continue
		}
		j.apply(e)
	}
	return corrupt, nil
}

func (j *journal) apply(e entry) {
	id := attemptID{e.Report.TaskID, int64(e.Report.ClaimID)}
	if e.Settled {
		delete(j.open, id)
	} else {
		j.open[id] = e.Report
	}
}

// openReports returns the reports that were open when the journal was opened. It must be called before put.
func (j *journal) openReports() []api.ReportRequest {
	reports := make([]api.ReportRequest, 0, len(j.open))
	for _, r := range j.open {
		reports = append(reports, r)
	}
	slices.SortFunc(reports, func(a, b api.ReportRequest) int {
		return cmp.Or(cmp.Compare(a.TaskID, b.TaskID), cmp.Compare(a.ClaimID, b.ClaimID))
	})
	return reports
}

// put replaces the report of an attempt, and returns once it is on disk.
func (j *journal) put(r api.ReportRequest) error {
	synced := make(chan error, 1)
	j.writes <- write{entry{Report: r}, synced}
	if err := <-synced; err != nil {
		return fmt.Errorf("journal %s: %w", j.path, err)
	}
	return nil
}

// remove removes an attempt. A crash may undo that: then the attempt is reported once more.
func (j *journal) remove(r api.ReportRequest) {
	j.writes <- write{entry: entry{Report: api.ReportRequest{TaskID: r.TaskID, ClaimID: r.ClaimID}, Settled: true}}
}

// close must be called last.
func (j *journal) close() error {
	close(j.writes)
	j.writer.Wait()
	if err := errors.Join(j.file.Close(), unlockFile(j.lock)); err != nil {
		return fmt.Errorf("journal %s: %w", j.path, err)
	}
	return nil
}

// run writes entries to the log. All entries that arrive during a sync share the next one.
func (j *journal) run() {
	for first := range j.writes {
		batch := j.gather(first)
		if j.err == nil {
			j.err = j.flush(batch)
		}
		for _, w := range batch {
			if w.synced != nil {
				w.synced <- j.err
			}
		}
	}
}

func (j *journal) gather(first write) []write {
	batch := []write{first}
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

func (j *journal) flush(batch []write) error {
	var lines []byte
	mustSync := false
	for _, w := range batch {
		line, err := encodeLine(w.entry)
		if err != nil {
			return err
		}
		lines = append(lines, line...)
		mustSync = mustSync || w.synced != nil
		j.apply(w.entry)
	}
	if j.size+len(lines) > j.compact {
		return j.rewrite()
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

// rewrite replaces the log by one with the open reports only.
func (j *journal) rewrite() error {
	lines, err := encodeLine(header{journalVersion, j.app})
	if err != nil {
		return err
	}
	for _, r := range j.open {
		line, err := encodeLine(entry{Report: r})
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
	j.file, j.size, j.compact = file, len(lines), max(compactSize, 2*len(lines))
	if old != nil {
		return old.Close()
	}
	return nil
}

// replaceFile replaces the file at path atomically and durably, and returns it open for appending.
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

// decodeLine decodes a line, and reports whether it is complete and correct.
func decodeLine(line []byte, v any) bool {
	sum, text, found := bytes.Cut(line, []byte(" "))
	return found && string(sum) == checksum(text) && json.Unmarshal(text, v) == nil
}
