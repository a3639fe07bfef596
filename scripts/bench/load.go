package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// patience is after how many failures in a row a connection gives up.
const patience = 10

// phase is one kind of call, made over a number of connections at once.
type phase struct {
	name        string
	connections int
	size        int                                          // rows per call
	rows        func() int                                   // at most so many in all, asked at the start
	limit       time.Duration                                // no call starts later
	call        func(c *client, n int) (done int, err error) // does up to n rows
}

// result is what a phase measured.
type result struct {
	name        string
	connections int
	rate        float64       // rows a second; 0 = it was not about that
	p50, p99    time.Duration // of one call; 0 = not known
	cores       float64       // what the load generator itself used; 0 = not known
	failures    map[string]int
}

// worker is one connection of a phase.
type worker struct {
	client    *client
	rows      int
	latencies []time.Duration
	failures  map[string]int
}

// run makes the calls of a phase. The connections are open before the clock starts.
func (p phase) run(ctx context.Context, address string) (result, error) {
	workers := make([]*worker, p.connections)
	for i := range workers {
		c, err := dial(address)
		if err != nil {
			return result{}, fmt.Errorf("%s: %w", p.name, err)
		}
		defer c.close()
		workers[i] = &worker{client: c, failures: map[string]int{}}
	}
	var left atomic.Int64
	left.Store(int64(p.rows()))
	var all sync.WaitGroup
	used, err := cpuTime()
	if err != nil {
		return result{}, err
	}
	start := time.Now()
	for _, w := range workers {
		all.Go(func() { w.run(ctx, p, &left, start.Add(p.limit)) })
	}
	all.Wait()
	took := time.Since(start)
	usedAfter, err := cpuTime()
	if err != nil {
		return result{}, err
	}
	r := result{name: p.name, connections: p.connections, cores: (usedAfter - used).Seconds() / took.Seconds(), failures: map[string]int{}}
	var latencies []time.Duration
	for _, w := range workers {
		r.rate += float64(w.rows) / took.Seconds()
		latencies = append(latencies, w.latencies...)
		for what, n := range w.failures {
			r.failures[what] += n
		}
	}
	slices.Sort(latencies)
	r.p50, r.p99 = quantile(latencies, 0.50), quantile(latencies, 0.99)
	return r, ctx.Err()
}

func (w *worker) run(ctx context.Context, p phase, left *atomic.Int64, deadline time.Time) {
	for inARow := 0; inARow < patience && ctx.Err() == nil; {
		start := time.Now()
		n := take(left, p.size)
		if n == 0 || start.After(deadline) {
			return
		}
		done, err := p.call(w.client, n)
		left.Add(int64(n - done))
		if err != nil {
			w.failures[err.Error()]++
			inARow++
			continue
		}
		inARow = 0
		w.rows += done
		w.latencies = append(w.latencies, time.Since(start))
	}
}

// take reserves up to n of what is left.
func take(left *atomic.Int64, n int) int {
	for {
		have := left.Load()
		got := min(have, int64(n))
		if got <= 0 {
			return 0
		}
		if left.CompareAndSwap(have, have-got) {
			return int(got)
		}
	}
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1))]
}

// tasks is what became of the submitted tasks, as their submitters and senders
// were told.
type tasks struct {
	number atomic.Int64 // of the newest submission

	mu       sync.Mutex
	accepted []string // ids
	claimed  []claimedTask
}

type claimedTask struct {
	id, claim string
}

// submit sends one message, with an idempotency key of its own if keyed.
func (t *tasks) submit(keyed bool) func(*client, int) (int, error) {
	return func(c *client, _ int) (int, error) {
		number := t.number.Add(1)
		body := append(make([]byte, 0, 96), `{"phone_number":"`...)
		body = strconv.AppendInt(body, 13_000_000_000+number%1_000_000_000, 10)
		body = append(body, `","content":"Your verification code is 285713"}`...)
		var key []byte
		if keyed {
			key = strconv.AppendInt(append(key, "bench-"...), number, 10)
		}
		answer, err := c.post("/api/v1/sms/send", key, body)
		if err != nil {
			return 0, err
		}
		id := text(answer, "task_id")
		if id == "" {
			return 0, errors.New("a submission was answered without a task_id")
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.accepted = append(t.accepted, id)
		return 1, nil
	}
}

// claim takes up to n tasks. None at all is no failure: the rest may be locked
// by another claim that is under way.
func (t *tasks) claim(c *client, n int) (int, error) {
	answer, err := c.post("/api/v1/sms/tasks/pending?app_id=bench&limit="+strconv.Itoa(n), nil, nil)
	if err != nil {
		return 0, err
	}
	got := claimedIn(answer)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.claimed = append(t.claimed, got...)
	return len(got), nil
}

func claimedIn(answer []byte) []claimedTask {
	var got []claimedTask
	for part := range bytes.SplitSeq(answer, []byte(`{"task_id"`)) {
		_, rest, found := bytes.Cut(part, []byte(`"claim_id":`))
		if found {
			claim, _, _ := bytes.Cut(rest, []byte{','})
			got = append(got, claimedTask{id: string(part[2:38]), claim: string(claim)})
		}
	}
	return got
}

// report tells the success of one task.
func (t *tasks) report(c *client, _ int) (int, error) {
	batch := t.pop(1)
	body := appendReport([]byte(`{"app_id":"bench",`), batch[0])
	if _, err := c.post("/api/v1/sms/report", nil, body); err != nil {
		t.unpop(batch)
		return 0, err
	}
	return 1, nil
}

// reportBatch tells the success of n tasks in one call.
func (t *tasks) reportBatch(c *client, n int) (int, error) {
	batch := t.pop(n)
	body := []byte(`{"app_id":"bench","items":[`)
	for i, one := range batch {
		if i > 0 {
			body = append(body, ',')
		}
		body = appendReport(append(body, '{'), one)
	}
	answer, err := c.post("/api/v1/sms/report/batch", nil, append(body, "]}"...))
	if err != nil {
		t.unpop(batch)
		return 0, err
	}
	if good := bytes.Count(answer, []byte(`{"code":200,`)) - 1; good != n {
		return 0, fmt.Errorf("%d of %d reports in a batch were refused", n-good, n)
	}
	return n, nil
}

func appendReport(body []byte, one claimedTask) []byte {
	body = append(append(body, `"task_id":"`...), one.id...)
	body = append(append(body, `","claim_id":`...), one.claim...)
	return append(body, `,"status":2}`...)
}

// pop takes n claimed tasks away; a phase never asks for more than there are.
func (t *tasks) pop(n int) []claimedTask {
	t.mu.Lock()
	defer t.mu.Unlock()
	batch := t.claimed[:n:n]
	t.claimed = t.claimed[n:]
	return batch
}

func (t *tasks) unpop(batch []claimedTask) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.claimed = append(t.claimed, batch...)
}

// The senders of the claim and batch report phases, and what each asks for.
const (
	fewSenders  = 4
	manySenders = 16
	batchRows   = 100
)

// phases takes tasks through their whole lives. What is left after the measured
// time is still claimed and reported, so that the end can be checked.
func (t *tasks) phases(o options) []phase {
	var list []phase
	for _, n := range o.connections {
		list = append(list, phase{"submit with a key", n, 1, unbounded, o.duration, t.submit(true)})
	}
	busiest, rest := o.busiest(), o.duration+time.Minute
	list = append(list,
		phase{"submit without a key", busiest[len(busiest)-1], 1, unbounded, o.duration, t.submit(false)},
		phase{"claim 100", fewSenders, batchRows, func() int { return len(t.accepted) / 2 }, o.duration, t.claim},
		phase{"claim 100", manySenders, batchRows, func() int { return len(t.accepted) - len(t.claimed) }, rest, t.claim})
	for _, n := range busiest {
		list = append(list, phase{"report", n, 1, func() int { return len(t.claimed) / 3 }, o.duration, t.report})
	}
	return append(list,
		phase{"report 100", fewSenders, batchRows, func() int { return len(t.claimed) / 2 }, o.duration, t.reportBatch},
		phase{"report 100", manySenders, batchRows, func() int { return len(t.claimed) }, rest, t.reportBatch})
}

func unbounded() int { return math.MaxInt }
