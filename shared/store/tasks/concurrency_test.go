package tasks_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// Two instances run these operations at once: submissions with the same keys, claims whose leases often expire, extensions, sweeps, and
// reports that are late, repeated or contradictory. No task may be lost, be submitted twice, be both live and done, or succeed twice.
func TestConcurrentOperationsLoseAndRepeatNoTask(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	instances := []*storetest.DB{storetest.OpenAt(t, url), storetest.OpenAt(t, url)}
	w := &workload{t: t, instances: instances}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()

	var submitters, senders sync.WaitGroup
	for n := range 4 {
		submitters.Go(func() { w.submit(n) })
	}
	running, stop := context.WithCancel(ctx)
	for n := range 4 {
		senders.Go(func() { w.send(running, n) })
	}
	senders.Go(func() { w.sweep(running) })
	submitters.Wait()
	require.Eventually(t, func() bool { return instances[0].Count(t, `select count(*) from task_live`) == 0 }, 50*time.Second, 20*time.Millisecond)
	stop()
	senders.Wait()
	require.NoError(t, ctx.Err())

	db := instances[0]
	require.Equal(t, int(w.accepted.Load()), db.Count(t, `select count(*) from tasks`), "each accepted submission is one row")
	require.Zero(t, db.Count(t, `select count(*) from tasks t where (select count(*) from task_live l where l.id = t.id) + (select count(*) from task_done d where d.id = t.id) <> 1`))
	require.Zero(t, db.Count(t, `select count(*) from submission_keys k where not exists (select from tasks t where t.id = k.id)`))
	require.Zero(t, db.Count(t, `select count(*) from (select task_id from report_logs where verdict = 'applied' and status = 2 group by 1 having count(*) > 1) x`), "no task succeeds twice")
	require.Zero(t, db.Count(t, `select count(*) from task_done d where status = 2 and not exists (select from report_logs r where r.task_id = d.id and r.claim_id = d.claim_id and verdict = 'applied' and r.status = 2)`))
	require.Zero(t, db.Count(t, `select count(*) from (select task_id, claim_id from send_logs group by 1, 2 having count(*) > 1) x`))
	// The claims of a task are in the order of send_logs.id, which is generated while the row is locked; a claim_id is reserved earlier.
	require.Zero(t, db.Count(t, `select count(*) from (select s.task_id, lag(s.claim_id) over w as before, s.claim_id
		from send_logs s window w as (partition by task_id order by s.id)) c
		where before is not null and not exists (select from report_logs r where r.task_id = c.task_id and r.claim_id = c.before and r.verdict in ('applied', 'timeout_retry'))`),
		"a task is claimed again only after its previous claim ended")
	require.Positive(t, db.Count(t, `select count(*) from report_logs where verdict = 'timeout_retry'`), "some leases expired")
	require.Positive(t, db.Count(t, `select count(*) from report_logs where verdict = 'stale_claim'`))
}

type workload struct {
	t         *testing.T
	instances []*storetest.DB
	accepted  atomic.Int64
}

func (w *workload) submit(n int) {
	for i := range 60 {
		s := storetest.Submission(func(s *tasks.Submission) { s.MaxRetries = 10 })
		if i%3 == 0 {
			storetest.Keyed(fmt.Sprint("k", i), "same for all submitters")(s)
		}
		outs, errs := w.instances[n%2].Tasks.Submit([]*tasks.Submission{s})
		if errs[0] == nil && outs[0].ID == s.ID {
			w.accepted.Add(1)
		}
	}
}

func (w *workload) send(ctx context.Context, n int) {
	app := fmt.Sprint("app", n)
	for ctx.Err() == nil {
		lease := time.Duration(5+rand.IntN(60)) * time.Millisecond
		claimed, _, err := w.instances[n%2].Tasks.Claim(ctx, tasks.ClaimRequest{Queue: task.DefaultQueue, AppID: app, Limit: 1 + rand.IntN(10), Lease: lease, Request: []byte(`{}`)})
		if err != nil {
			continue
		}
		for _, c := range claimed {
			w.report(ctx, c, app)
		}
	}
}

func (w *workload) report(ctx context.Context, c tasks.Claimed, app string) {
	r := task.Report{TaskID: c.ID, AppID: app, ClaimID: c.ClaimID, Outcome: task.Outcome(rand.IntN(4)), ShouldRetry: rand.IntN(4) > 0}
	db := w.instances[rand.IntN(2)]
	switch rand.IntN(6) {
	case 0:
		return // the app died
	case 1:
		_, _ = db.Tasks.Extend(ctx, tasks.Extension{TaskID: c.ID, AppID: app, ClaimID: c.ClaimID, Lease: 20 * time.Millisecond, Sending: true}, nil)
	case 2:
		w.instances[0].Tasks.Report([]*tasks.Report{storetest.Report(r)})
		r.Outcome = task.Outcome(rand.IntN(4))
	}
	db.Tasks.Report([]*tasks.Report{storetest.Report(r), storetest.Report(r)})
}

func (w *workload) sweep(ctx context.Context) {
	for ctx.Err() == nil {
		_, _ = w.instances[1].Tasks.Sweep(ctx, 50)
	}
}
