package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

func (db *DB) mustList(t *testing.T, f TaskFilter) TaskPage {
	t.Helper()
	if f.Limit == 0 {
		f.Limit = 50
	}
	page, err := db.ListTasks(t.Context(), f)
	require.NoError(t, err)
	return page
}

func ids(page TaskPage) (ids []task.ID) {
	for _, d := range page.Tasks {
		ids = append(ids, d.ID)
	}
	return ids
}

func pointer[T any](v T) *T { return &v }

func TestAListHoldsWhatEachFilterNamesNewestFirst(t *testing.T) {
	t.Parallel()
	db := open(t)
	scheduled := message(func(s *Submission) { s.SendAt = time.Now().Add(time.Hour) })
	bulk := message(func(s *Submission) { s.Queue = "bulk" })
	phone := message(func(s *Submission) { s.Phone, s.Source, s.Queue = "+8613900139000", "crm", "phones" })
	theirs := message(func(s *Submission) { s.CallerID, s.Queue = 5, "theirs" })
	rejected, sent, processing := message(), message(), message()
	all := []*Submission{scheduled, bulk, phone, theirs, rejected, sent, processing}
	for _, s := range all {
		db.mustSubmit(t, s)
	}
	for i, c := range db.mustClaim(t, "app", 3) {
		outcome := []task.Outcome{task.SentFailed, task.SentOK}
		if i < len(outcome) {
			db.mustReport(t, task.Report{TaskID: c.ID, AppID: "app", Outcome: outcome[i]})
		}
	}

	for name, c := range map[string]struct {
		filter TaskFilter
		want   []*Submission
	}{
		"everything":               {TaskFilter{}, []*Submission{processing, sent, rejected, theirs, phone, bulk, scheduled}},
		"scheduled":                {TaskFilter{State: pointer(task.Scheduled)}, []*Submission{scheduled}},
		"pending":                  {TaskFilter{State: pointer(task.Pending)}, []*Submission{theirs, phone, bulk}},
		"pending of a queue":       {TaskFilter{State: pointer(task.Pending), Queue: "bulk"}, []*Submission{bulk}},
		"processing":               {TaskFilter{State: pointer(task.Processing)}, []*Submission{processing}},
		"held":                     {TaskFilter{State: pointer(task.Held)}, nil},
		"succeeded":                {TaskFilter{State: pointer(task.Succeeded)}, []*Submission{sent}},
		"failed":                   {TaskFilter{State: pointer(task.Failed)}, []*Submission{rejected}},
		"a reason":                 {TaskFilter{Reason: task.Rejected}, []*Submission{rejected}},
		"another reason":           {TaskFilter{Reason: task.Expired}, nil},
		"a phone number":           {TaskFilter{Phone: "+8613900139000"}, []*Submission{phone}},
		"a phone number's failed":  {TaskFilter{Phone: "13800138000", State: pointer(task.Failed)}, []*Submission{rejected}},
		"a source":                 {TaskFilter{Source: "crm"}, []*Submission{phone}},
		"a caller":                 {TaskFilter{CallerID: pointer(int64(5))}, []*Submission{theirs}},
		"the caller 0":             {TaskFilter{CallerID: pointer(int64(0)), Queue: "bulk"}, []*Submission{bulk}},
		"from a time":              {TaskFilter{From: rejected.ID.Time()}, []*Submission{processing, sent, rejected}},
		"before a time":            {TaskFilter{To: phone.ID.Time()}, []*Submission{bulk, scheduled}},
		"after the page before":    {TaskFilter{After: bulk.ID}, []*Submission{scheduled}},
		"after a page, in a range": {TaskFilter{After: sent.ID, To: processing.ID.Time(), From: rejected.ID.Time()}, []*Submission{rejected}},
	} {
		var want []task.ID
		for _, s := range c.want {
			want = append(want, s.ID)
		}
		page := db.mustList(t, c.filter)
		require.Equal(t, want, ids(page), name)
		require.True(t, page.Next.IsZero(), name)
	}
	for _, d := range db.mustList(t, TaskFilter{}).Tasks {
		require.Equal(t, db.mustTask(t, d.ID), d, "a listed task is the task")
	}
}

func TestPagesFollowEachOtherWithoutGapOrRepeat(t *testing.T) {
	t.Parallel()
	db := open(t)
	var want []task.ID
	for range 7 {
		s := message()
		db.mustSubmit(t, s)
		want = append([]task.ID{s.ID}, want...)
	}
	for _, f := range []TaskFilter{{}, {State: pointer(task.Pending)}, {Phone: "13800138000"}} {
		var got []task.ID
		f.Limit = 3
		for more := true; more; more = !f.After.IsZero() {
			page := db.mustList(t, f)
			got = append(got, ids(page)...)
			f.After = page.Next
		}
		require.Equal(t, want, got)
	}
}

// fill makes n tasks of the queue default, oldest first: those whose number
// divides by 10 are pending, by 25 failed, all others succeeded. Number 1 is of
// the source rare and the phone number 999.
func fill(t *testing.T, url string, n int) {
	t.Helper()
	conn := owner(t, url)
	const id = `(lpad(to_hex(1700000000000 + i), 12, '0') || '70008000000000000001')::uuid`
	for _, sql := range []string{
		`insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content, source)
		 select ` + id + `, 0, 'default', 5, 3, 0, case i when 1 then '999' else (13800000000 + i % 1000)::text end, 'x', case i when 1 then 'rare' end
		 from generate_series(1, $1::int) i`,
		`insert into task_live (id, state, priority, max_retries, on_unknown, queue)
		 select ` + id + `, 1, 5, 3, 0, 'default' from generate_series(1, $1::int) i where i % 10 = 0`,
		`insert into task_done (id, status, reason, retry_count, ended)
		 select ` + id + `, case when i % 25 = 0 then 3 else 2 end, case when i % 25 = 0 then 1 else 0 end, 0, 1
		 from generate_series(1, $1::int) i where i % 10 <> 0`,
	} {
		_, err := conn.Exec(t.Context(), sql, n)
		require.NoError(t, err)
	}
}

func TestNoListWalksTheHistory(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := openAt(t, url)
	fill(t, url, 50_000)
	check := func(when string) {
		for _, c := range []struct {
			filter TaskFilter
			index  string
		}{
			{TaskFilter{}, "tasks_pkey"},
			{TaskFilter{Source: "rare", Queue: "default"}, "tasks_pkey"},
			{TaskFilter{State: pointer(task.Succeeded)}, "tasks_pkey"},
			{TaskFilter{Phone: "999"}, "idx_sms_tasks_phone"},
			{TaskFilter{Phone: "13800000005", State: pointer(task.Failed)}, "idx_sms_tasks_phone"},
			{TaskFilter{State: pointer(task.Pending)}, "task_live_pkey"},
			{TaskFilter{State: pointer(task.Failed), Source: "rare"}, "task_done_failed"},
			{TaskFilter{Reason: task.Rejected}, "task_done_failed"},
		} {
			low, high := c.filter.bounds()
			list, edge, edgeArgs := c.filter.driver(low, high)
			c.filter.Limit = 50
			for _, plan := range []string{
				explain(t, db.read, walkIndexSQL, edge, edgeArgs...),
				explain(t, db.read, walkIndexSQL, list, c.filter.args(low, high)...),
			} {
				require.Contains(t, plan, "Scan Backward using "+c.index+" on", "%s, %+v", when, c.filter)
				require.NotContains(t, plan, "Seq Scan", "%s, %+v", when, c.filter)
				require.NotContains(t, plan, "Sort", "%s, %+v", when, c.filter)
			}
		}
	}
	check("before the first analyze")
	_, err := owner(t, url).Exec(t.Context(), `vacuum analyze`)
	require.NoError(t, err)
	check("after it")
}

func TestAFilterThatFewTasksPassGivesShortPagesThatLeadOn(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := openAt(t, url)
	fill(t, url, 2*scanRows+1)
	f := TaskFilter{Source: "rare"}
	for range 2 {
		page := db.mustList(t, f)
		require.Empty(t, page.Tasks)
		require.False(t, page.Next.IsZero())
		f.After = page.Next
	}
	page := db.mustList(t, f)
	require.Len(t, page.Tasks, 1)
	require.Equal(t, "rare", page.Tasks[0].Source)
	require.True(t, page.Next.IsZero())
	require.Len(t, db.mustList(t, TaskFilter{Phone: "999"}).Tasks, 1, "the phone number's index finds it at once")
}

func TestListOfSomeQueuesShowsNoForeignID(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := openAt(t, url)
	fill(t, url, 2*scanRows+1)
	mine := message(keyed("k", "hello"), func(s *Submission) { s.Queue = "mine" })
	db.mustSubmit(t, mine)
	f := TaskFilter{Queues: []string{"mine"}, Limit: 10}
	var found []task.ID
	for range 4 {
		page := db.mustList(t, f)
		for _, d := range page.Tasks {
			found = append(found, d.ID)
		}
		if f.After = page.Next; f.After.IsZero() {
			break
		}
		_, err := db.Task(t.Context(), f.After)
		require.Equal(t, task.CodeNotFound, task.CodeOf(err), "the cursor is the id of a foreign task")
	}
	require.True(t, f.After.IsZero(), "the pages end")
	require.Equal(t, []task.ID{mine.ID}, found)
}

func TestATimelineTellsAllThreeLogsInOrder(t *testing.T) {
	t.Parallel()
	db := open(t)
	s := message(keyed("k", "hello"), func(s *Submission) { s.SourceIP, s.UserAgent = "192.0.2.7", "curl" })
	db.mustSubmit(t, s)
	require.True(t, db.mustSubmit(t, message(keyed("k", "hello")))[0].Replayed)
	claimed := db.mustClaim(t, "app", 1)[0]
	db.mustReport(t, task.Report{TaskID: s.ID, AppID: "app", ClaimID: claimed.ClaimID, Outcome: task.SentFailed, Message: "no signal", ErrorCode: "E1"})
	_, err := db.RetryFailed(t.Context(), s.ID, Operator{Name: "tester", RequestID: "r", Reason: "the tower is back"})
	require.NoError(t, err)

	events, next, err := db.Timeline(t.Context(), s.ID, TimelinePlace{}, 10)
	require.NoError(t, err)
	var kinds []EventKind
	for i, e := range events {
		kinds = append(kinds, e.Event)
		require.False(t, i > 0 && e.At.Before(events[i-1].At))
	}
	require.Equal(t, []EventKind{EventReceived, EventReplayed, EventClaimed, EventReport, EventVerdict}, kinds)
	require.Equal(t, "192.0.2.7", events[0].SourceIP)
	require.Equal(t, "curl", events[0].UserAgent)
	require.Equal(t, 200, events[0].StatusCode)
	require.Equal(t, claimed.ClaimID, events[2].ClaimID)
	require.Equal(t, Event{
		At: events[3].At, Event: EventReport, AppID: "app", ClaimID: claimed.ClaimID, Status: 3, Verdict: "applied", ErrorCode: "E1", Message: "no signal",
	}, events[3])
	require.Equal(t, "the tower is back", events[4].Message)
	require.Equal(t, "retried", events[4].Verdict)
	require.Zero(t, next)

	events, next, err = db.Timeline(t.Context(), s.ID, TimelinePlace{}, 1)
	require.NoError(t, err)
	require.Len(t, events, 3, "each log gives its newest line")
	require.Equal(t, []EventKind{EventReplayed, EventClaimed, EventVerdict}, column(events, func(e Event) EventKind { return e.Event }))
	events, next, err = db.Timeline(t.Context(), s.ID, next, 1)
	require.NoError(t, err)
	require.Equal(t, []EventKind{EventReceived, EventReport}, column(events, func(e Event) EventKind { return e.Event }))
	require.Zero(t, next)
	events, _, err = db.Timeline(t.Context(), task.NewID(), TimelinePlace{}, 1)
	require.NoError(t, err)
	require.Empty(t, events)
}
