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
	compactAt = 1 << 20 // bytes
	gathered  = 1000    // entries of one sync, at most
)

// journal holds on disk what would have to be reported if the process died now:
// for each attempt that was begun and whose report is not answered, that report.
//
// It is a log of such reports, of which the last one of an attempt counts. Each
// line has a checksum, as a crash may leave anything behind the last sync; what
// was written since then was never acted upon. The log is rewritten when it has
// grown, so its size is bounded by the attempts in hand.
type journal struct {
	path   string
	app    string
	lock   *os.File
	writes chan write
	ended  sync.WaitGroup

	// The rest is the writer's own.
	file    *os.File
	open    map[attemptID]api.ReportRequest
	size    int
	compact int   // the size at which to rewrite
	err     error // once a write has failed nobody knows what the file holds
}

// attemptID names an attempt: tasks claimed together share a claim_id.
type attemptID struct {
	task  string
	claim int64
}

// entry is a line of the log: the report to make of an attempt, or none any more.
type entry struct {
	Report  api.ReportRequest `json:"report"`
	Settled bool              `json:"settled,omitempty"`
}

// header is the first line.
type header struct {
	Journal int    `json:"sendonce_journal"` // the format's version
	AppID   string `json:"app_id"`
}

const journalVersion = 1

type write struct {
	entry
	synced chan<- error // nil = nobody waits
}

// openJournal opens or makes the journal of an app, for this process alone.
// spoilt is how many lines could not be read.
func openJournal(path, app string) (j *journal, spoilt int, err error) {
	j = &journal{path: path, app: app, open: map[attemptID]api.ReportRequest{}, writes: make(chan write)}
	if j.lock, err = lockFile(path + ".lock"); err != nil {
		return nil, 0, fmt.Errorf("journal %s: %w", path, err)
	}
	if spoilt, err = j.read(); err == nil {
		err = j.rewrite()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("journal %s: %w", path, errors.Join(err, unlockFile(j.lock)))
	}
	j.ended.Go(j.run)
	return j, spoilt, nil
}

// lockFile holds a lock that ends with the process. The file stays: a lock on
// one that was removed would keep nobody out.
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

// unlockFile lets go of a lock at once. Closing the file would not: a child that
// was forked and has not come to its exec still has it open, and so holds the lock.
func unlockFile(file *os.File) error {
	return errors.Join(syscall.Flock(int(file.Fd()), syscall.LOCK_UN), file.Close())
}

// read fills j.open. Lines that a crash spoilt are left out: an attempt whose
// entry is lost is settled by the server, when its lease ends.
func (j *journal) read() (spoilt int, err error) {
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
		return 0, errors.New("the file is no sender's journal, or one of another version")
	}
	if h.AppID != j.app {
		return 0, fmt.Errorf("it belongs to the app %q: give each app its own", h.AppID)
	}
	for line := range bytes.Lines(rest) {
		var e entry
		if !decodeLine(bytes.TrimSuffix(line, []byte("\n")), &e) {
			spoilt++
			continue
		}
		j.note(e)
	}
	return spoilt, nil
}

func (j *journal) note(e entry) {
	id := attemptID{e.Report.TaskID, int64(e.Report.ClaimID)}
	if e.Settled {
		delete(j.open, id)
	} else {
		j.open[id] = e.Report
	}
}

// left gives the reports that were to be made when the journal was opened. It
// must be called before anything is put.
func (j *journal) left() []api.ReportRequest {
	reports := make([]api.ReportRequest, 0, len(j.open))
	for _, r := range j.open {
		reports = append(reports, r)
	}
	slices.SortFunc(reports, func(a, b api.ReportRequest) int {
		return cmp.Or(cmp.Compare(a.TaskID, b.TaskID), cmp.Compare(a.ClaimID, b.ClaimID))
	})
	return reports
}

// put returns once the report is on disk, in the place of an earlier one of the
// same attempt.
func (j *journal) put(r api.ReportRequest) error {
	synced := make(chan error, 1)
	j.writes <- write{entry{Report: r}, synced}
	if err := <-synced; err != nil {
		return fmt.Errorf("journal %s: %w", j.path, err)
	}
	return nil
}

// strike forgets an attempt. That may be lost in a crash: then it is reported
// once more.
func (j *journal) strike(r api.ReportRequest) {
	j.writes <- write{entry: entry{Report: api.ReportRequest{TaskID: r.TaskID, ClaimID: r.ClaimID}, Settled: true}}
}

// close must come after all else.
func (j *journal) close() error {
	close(j.writes)
	j.ended.Wait()
	if err := errors.Join(j.file.Close(), unlockFile(j.lock)); err != nil {
		return fmt.Errorf("journal %s: %w", j.path, err)
	}
	return nil
}

// run writes whatever has come in since the last sync with one sync.
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
	for len(batch) < gathered {
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
	wanted := false
	for _, w := range batch {
		line, err := encodeLine(w.entry)
		if err != nil {
			return err
		}
		lines = append(lines, line...)
		wanted = wanted || w.synced != nil
		j.note(w.entry)
	}
	if j.size+len(lines) > j.compact {
		return j.rewrite()
	}
	if _, err := j.file.Write(lines); err != nil {
		return err
	}
	j.size += len(lines)
	if wanted {
		return j.file.Sync()
	}
	return nil
}

// rewrite puts a file with what is open in the place of the log.
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
	j.file, j.size, j.compact = file, len(lines), max(compactAt, 2*len(lines))
	if old != nil {
		return old.Close()
	}
	return nil
}

// replaceFile puts a file of the given text at path, durably and at once, and
// gives it open for appending.
func replaceFile(path string, text []byte) (*os.File, error) {
	fresh := path + ".new"
	file, err := os.OpenFile(fresh, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = file.Write(text)
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = os.Rename(fresh, path)
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

// decodeLine tells whether a line is whole.
func decodeLine(line []byte, v any) bool {
	sum, text, found := bytes.Cut(line, []byte(" "))
	return found && string(sum) == checksum(text) && json.Unmarshal(text, v) == nil
}
