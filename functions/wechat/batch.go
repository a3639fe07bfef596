package wechat

import (
	"sync"
	"time"

	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/task"
)

// tally counts claimed tasks, and their results by class (or "lost", see batch.report).
type tally struct {
	claimed int
	results map[string]int
}

func (t *tally) add(more *tally) {
	t.claimed += more.claimed
	for class, n := range more.results {
		t.results[class] += n
	}
}

// batch is the work on the tasks that were claimed together. Their messages are sent concurrently.
type batch struct {
	*sender
	tally
	reportBy time.Time // until then a report is retried after an error
	token    token
	sends    map[task.ID]subscribe.Send        // the messages of the tasks
	paused   map[subscribe.CallerTemplate]bool // the paused templates of these messages

	mu          sync.Mutex // guards the fields below, and tally.results
	stopReason  *result    // if set, no further attempt is started
	stopClasses []class    // of all results that stopped the batch
	errs        []error
}

// hasMore reports whether another batch should be claimed.
func (b *batch) hasMore() bool { return b.claimed == b.cfg.Concurrency && b.stopReason == nil }

// addError adds err to the errors that send returns, unless err is nil.
func (b *batch) addError(err error) {
	if err == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.errs = append(b.errs, err)
}
