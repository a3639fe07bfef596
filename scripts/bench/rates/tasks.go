package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/scripts/bench"
	"github.com/sendonce/sendonce/shared/sandbox/load"
)

// tasks makes the calls of tasks and enters what is answered.
type tasks struct {
	ledger *load.Ledger
	number atomic.Int64 // of the newest submission

	mu      sync.Mutex
	claimed []claimed // and not reported yet
}

type claimed struct{ id, claim string }

// The connections of senders, and the rows of a batch.
const (
	senders     = 4
	reporters   = 64
	batchRows   = 100
	submitRows  = 500
	finishLimit = time.Minute
)

// pgbenchMost is the most connections of pgbench. On two cores it inserted 10,210 rows/s with 64 and
// 4,660 with 256.
const pgbenchMost = 64

// The measurements that are plotted.
const (
	submitKeyed    = "submit with a key"
	submitBatch    = "submit 500 with keys"
	submitFixed    = "submit at fixed times"
	claimAndReport = "claim 100 and report 100"
	wholeLife      = "whole life"
)

// phases submits, claims and reports tasks. Each is made when its turn comes, as its rows
// depend on the phases before.
func (t *tasks) phases(o options, m *bench.Machine, river *bench.River) (list []func() bench.Phase) {
	pgbench := func(connections int) []bench.Baseline {
		return []bench.Baseline{m.Pgbench(min(connections, pgbenchMost), o.duration/2)}
	}
	most := o.connections[len(o.connections)-1]
	for _, n := range o.connections {
		list = append(list, func() bench.Phase {
			p := bench.Phase{Name: submitKeyed, Connections: n, Rows: bench.NoLimit, Call: t.submit(true), Baselines: pgbench(n)}
			if n == most {
				p.Baselines = append(p.Baselines, river.Insert(o.duration/2)...)
			}
			return p
		})
	}
	return append(list,
		func() bench.Phase {
			return bench.Phase{Name: "submit without a key", Connections: most, Rows: bench.NoLimit, Call: t.submit(false), Baselines: pgbench(most)}
		},
		func() bench.Phase {
			return bench.Phase{Name: submitBatch, Connections: senders, Rows: bench.NoLimit, Batch: submitRows, Call: t.submitBatch,
				Baselines: river.InsertMany(o.duration / 2)}
		},
		func() bench.Phase {
			return bench.Phase{Name: "claim 100", Connections: senders, Rows: t.waiting() / 2, Batch: batchRows, Call: t.claim}
		},
		func() bench.Phase {
			return bench.Phase{Name: "report", Connections: reporters, Rows: t.unreported() / 2, Call: t.report, Baselines: pgbench(reporters)}
		},
		func() bench.Phase {
			return bench.Phase{Name: "report 100", Connections: senders, Rows: t.unreported(), Batch: batchRows, Call: t.reportBatch}
		},
		func() bench.Phase {
			return bench.Phase{Name: claimAndReport, Connections: senders, Rows: t.waiting(), Batch: batchRows, Call: t.claimAndReport,
				Baselines: river.Work()}
		})
}

// finish claims and reports the rest, which is not measured, so that the next round
// begins with an empty queue.
func (t *tasks) finish(ctx context.Context, address string) error {
	for _, phase := range []func() bench.Phase{
		func() bench.Phase { return bench.Phase{Rows: t.waiting(), Call: t.claim} },
		func() bench.Phase { return bench.Phase{Rows: t.unreported(), Call: t.reportBatch} },
	} {
		p := phase()
		p.Name, p.Connections, p.Duration, p.Batch = "finish a round", senders, finishLimit, batchRows
		r, err := p.Run(ctx, address)
		if err := errors.Join(err, r.Err()); err != nil {
			return err
		}
	}
	if n := t.waiting() + t.unreported(); n > 0 {
		return fmt.Errorf("%d tasks were not claimed and reported within %v", n, finishLimit)
	}
	return nil
}

// waiting is how many tasks were accepted and not claimed.
func (t *tasks) waiting() int {
	submitted, claimed, _ := t.ledger.Tasks()
	return submitted - claimed
}

func (t *tasks) unreported() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.claimed)
}

// submit sends one message, with an idempotency key of its own if keyed.
func (t *tasks) submit(keyed bool) func(*bench.Client, int) (int, error) {
	return func(c *bench.Client, _ int) (int, error) {
		_, err := t.submitOne(c, keyed)
		if err != nil {
			return 0, err
		}
		return 1, nil
	}
}

func (t *tasks) submitOne(c *bench.Client, keyed bool) (id string, err error) {
	number := t.number.Add(1)
	var header []byte
	if keyed {
		header = appendKey(nil, number)
	}
	answer, err := c.Post("/api/v1/sms/send", header, append(appendMessage(make([]byte, 0, 96), number), '}'))
	if err != nil {
		return "", err
	}
	if id = bench.Text(answer, "task_id"); id == "" {
		return "", errors.New("a submission was answered without a task_id")
	}
	return id, t.ledger.Submitted(string(appendKey(nil, number)), id)
}

// submitBatch sends n messages, each with an idempotency key of its own, in one call.
func (t *tasks) submitBatch(c *bench.Client, n int) (int, error) {
	last := t.number.Add(int64(n))
	first := last - int64(n) + 1
	body := append(make([]byte, 0, n*128), `{"items":[`...)
	for number := first; number <= last; number++ {
		body = append(appendMessage(body, number), `,"idempotency_key":"`...)
		body = append(appendKey(body, number), `"},`...)
	}
	body[len(body)-1] = ']'
	answer, err := c.Post("/api/v1/sms/send/batch", nil, append(body, '}'))
	if err != nil {
		return 0, err
	}
	if accepted := bytes.Count(answer, []byte(`"task_id":"`)); accepted != n {
		return 0, fmt.Errorf("%d of %d submissions in a batch were refused", n-accepted, n)
	}
	for number := first; number <= last; number++ {
		_, answer, _ = bytes.Cut(answer, []byte(`"task_id":"`))
		if err := t.ledger.Submitted(string(appendKey(nil, number)), string(answer[:36])); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func appendKey(b []byte, number int64) []byte {
	return strconv.AppendInt(append(b, "bench-"...), number, 10)
}

// appendMessage appends a submission without its last brace.
func appendMessage(body []byte, number int64) []byte {
	body = append(body, `{"phone_number":"`...)
	body = strconv.AppendInt(body, 13_000_000_000+number%1_000_000_000, 10)
	return append(body, `","content":"Your verification code is 285713"`...)
}

// claim claims up to n tasks. An empty response is no failure: other claims may have locked
// the rest.
func (t *tasks) claim(c *bench.Client, n int) (int, error) {
	answer, err := c.Post("/api/v1/sms/tasks/pending?app_id=bench&limit="+strconv.Itoa(n), nil, nil)
	if err != nil {
		return 0, err
	}
	got := claimedIn(answer)
	for _, one := range got {
		t.ledger.Claimed(one.id, one.claim)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.claimed = append(t.claimed, got...)
	return len(got), nil
}

func claimedIn(answer []byte) (got []claimed) {
	for part := range bytes.SplitSeq(answer, []byte(`{"task_id"`)) {
		if _, _, found := bytes.Cut(part, []byte(`"claim_id":`)); found {
			got = append(got, claimed{id: string(part[2:38]), claim: bench.Text(part, "claim_id")})
		}
	}
	return got
}

// report reports the success of one task.
func (t *tasks) report(c *bench.Client, _ int) (int, error) {
	batch := t.take(1)
	if _, err := c.Post("/api/v1/sms/report", nil, appendReport([]byte(`{"app_id":"bench",`), batch[0])); err != nil {
		t.putBack(batch)
		return 0, err
	}
	t.ledger.Reported(batch[0].id)
	return 1, nil
}

// reportBatch reports the success of n tasks in one call.
func (t *tasks) reportBatch(c *bench.Client, n int) (int, error) {
	batch := t.take(n)
	body := []byte(`{"app_id":"bench","items":[`)
	for i, one := range batch {
		if i > 0 {
			body = append(body, ',')
		}
		body = appendReport(append(body, '{'), one)
	}
	answer, err := c.Post("/api/v1/sms/report/batch", nil, append(body, "]}"...))
	if err != nil {
		t.putBack(batch)
		return 0, err
	}
	if good := bytes.Count(answer, []byte(`{"code":200,`)) - 1; good != n {
		return 0, fmt.Errorf("%d of %d reports in a batch were refused", n-good, n)
	}
	for _, one := range batch {
		t.ledger.Reported(one.id)
	}
	return n, nil
}

// claimAndReport claims up to n tasks and reports the success of as many.
func (t *tasks) claimAndReport(c *bench.Client, n int) (int, error) {
	got, err := t.claim(c, n)
	if err != nil || got == 0 {
		return 0, err
	}
	return t.reportBatch(c, got)
}

func appendReport(body []byte, one claimed) []byte {
	body = append(append(body, `"task_id":"`...), one.id...)
	body = append(append(body, `","claim_id":"`...), one.claim...)
	return append(body, `","status":2}`...)
}

// take takes n claimed tasks; a phase has no more rows than there are.
func (t *tasks) take(n int) []claimed {
	t.mu.Lock()
	defer t.mu.Unlock()
	batch := t.claimed[:n:n]
	t.claimed = t.claimed[n:]
	return batch
}

func (t *tasks) putBack(batch []claimed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.claimed = append(t.claimed, batch...)
}
