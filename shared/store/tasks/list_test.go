package tasks_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func mustList(t *testing.T, db *storetest.DB, f tasks.Filter) tasks.Page {
	t.Helper()
	if f.Limit == 0 {
		f.Limit = 50
	}
	page, err := db.Tasks.List(t.Context(), f)
	require.NoError(t, err)
	return page
}

func listedIDs(page tasks.Page) (ids []task.ID) {
	for _, d := range page.Tasks {
		ids = append(ids, d.ID)
	}
	return ids
}

func TestListReturnsMatchingTasksNewestFirst(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	scheduled := storetest.Submission(func(s *tasks.Submission) { s.SendAt = time.Now().Add(time.Hour) })
	bulk := storetest.Submission(storetest.InQueue("bulk"))
	phone := storetest.Submission(func(s *tasks.Submission) { s.Phone, s.Source, s.Queue = "+8613900139000", "crm", "phones" })
	theirs := storetest.Submission(func(s *tasks.Submission) { s.CallerID, s.Queue = 5, "theirs" })
	rejected, sent, processing := storetest.Submission(), storetest.Submission(), storetest.Submission()
	for _, s := range []*tasks.Submission{scheduled, bulk, phone, theirs, rejected, sent, processing} {
		db.MustSubmit(t, s)
	}
	for i, c := range db.ClaimAs(t, "app", 3) {
		outcomes := []task.Outcome{task.SentFailed, task.SentOK}
		if i < len(outcomes) {
			db.MustReport(t, task.Report{TaskID: c.ID, AppID: "app", Outcome: outcomes[i]})
		}
	}

	for name, c := range map[string]struct {
		filter tasks.Filter
		want   []*tasks.Submission
	}{
		"everything":               {tasks.Filter{}, []*tasks.Submission{processing, sent, rejected, theirs, phone, bulk, scheduled}},
		"scheduled":                {tasks.Filter{State: new(task.Scheduled)}, []*tasks.Submission{scheduled}},
		"pending":                  {tasks.Filter{State: new(task.Pending)}, []*tasks.Submission{theirs, phone, bulk}},
		"pending of a queue":       {tasks.Filter{State: new(task.Pending), Queue: "bulk"}, []*tasks.Submission{bulk}},
		"processing":               {tasks.Filter{State: new(task.Processing)}, []*tasks.Submission{processing}},
		"held":                     {tasks.Filter{State: new(task.Held)}, nil},
		"succeeded":                {tasks.Filter{State: new(task.Succeeded)}, []*tasks.Submission{sent}},
		"failed":                   {tasks.Filter{State: new(task.Failed)}, []*tasks.Submission{rejected}},
		"a reason":                 {tasks.Filter{Reason: task.Rejected}, []*tasks.Submission{rejected}},
		"a reason of no task":      {tasks.Filter{Reason: task.Expired}, nil},
		"a phone number":           {tasks.Filter{Phone: "+8613900139000"}, []*tasks.Submission{phone}},
		"failed of a phone number": {tasks.Filter{Phone: "13800138000", State: new(task.Failed)}, []*tasks.Submission{rejected}},
		"a source":                 {tasks.Filter{Source: "crm"}, []*tasks.Submission{phone}},
		"a caller":                 {tasks.Filter{CallerID: new(int64(5))}, []*tasks.Submission{theirs}},
		"the caller 0":             {tasks.Filter{CallerID: new(int64(0)), Queue: "bulk"}, []*tasks.Submission{bulk}},
		"from a time":              {tasks.Filter{From: rejected.ID.Time()}, []*tasks.Submission{processing, sent, rejected}},
		"before a time":            {tasks.Filter{To: phone.ID.Time()}, []*tasks.Submission{bulk, scheduled}},
		"after a page":             {tasks.Filter{After: bulk.ID}, []*tasks.Submission{scheduled}},
		"after a page, in a range": {tasks.Filter{After: sent.ID, To: processing.ID.Time(), From: rejected.ID.Time()}, []*tasks.Submission{rejected}},
	} {
		var want []task.ID
		for _, s := range c.want {
			want = append(want, s.ID)
		}
		page := mustList(t, db, c.filter)
		require.Equal(t, want, listedIDs(page), name)
		require.True(t, page.Next.IsZero(), name)
	}
	for _, d := range mustList(t, db, tasks.Filter{}).Tasks {
		require.Equal(t, db.MustTask(t, d.ID), d, "a list has the same fields as ByID")
	}
}

func TestPagesFollowEachOtherWithoutGapOrRepeat(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	want := submitMany(t, db, 7)
	slices.Reverse(want)
	for _, f := range []tasks.Filter{{}, {State: new(task.Pending)}, {Phone: "13800138000"}} {
		var got []task.ID
		f.Limit = 3
		for more := true; more; more = !f.After.IsZero() {
			page := mustList(t, db, f)
			got = append(got, listedIDs(page)...)
			f.After = page.Next
		}
		require.Equal(t, want, got)
	}
}

// insertTasks inserts the tasks 1 to n of the queue default, oldest first. Tasks whose number is
// divisible by 10 are pending. Of the others, those divisible by 25 failed, and the rest succeeded.
// Task 1 has the source rare and the phone number 999.
func insertTasks(t *testing.T, db *storetest.DB, n int) {
	t.Helper()
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
		db.Exec(t, sql, n)
	}
}

func TestListsScanOnlyTheirIndex(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	insertTasks(t, db, 50_000)
	check := func(when string) {
		for _, c := range []struct {
			filter tasks.Filter
			index  string
		}{
			{tasks.Filter{}, "tasks_pkey"},
			{tasks.Filter{Source: "rare", Queue: "default"}, "tasks_pkey"},
			{tasks.Filter{State: new(task.Succeeded)}, "tasks_pkey"},
			{tasks.Filter{Phone: "999"}, "idx_sms_tasks_phone"},
			{tasks.Filter{Phone: "13800000005", State: new(task.Failed)}, "idx_sms_tasks_phone"},
			{tasks.Filter{State: new(task.Pending)}, "task_live_pkey"},
			{tasks.Filter{State: new(task.Failed), Source: "rare"}, "task_done_failed"},
			{tasks.Filter{Reason: task.Rejected}, "task_done_failed"},
		} {
			low, high := c.filter.Bounds()
			list, edge, edgeArgs := c.filter.IndexStatements(low, high)
			c.filter.Limit = 50
			for _, plan := range []string{
				storetest.Explain(t, db.Read, tasks.WalkIndexSQL, edge, edgeArgs...),
				storetest.Explain(t, db.Read, tasks.WalkIndexSQL, list, c.filter.Args(low, high)...),
			} {
				require.Contains(t, plan, "Scan Backward using "+c.index+" on", "%s, %+v", when, c.filter)
				require.NotContains(t, plan, "Seq Scan", "%s, %+v", when, c.filter)
				require.NotContains(t, plan, "Sort", "%s, %+v", when, c.filter)
			}
		}
	}
	check("before the first analyze")
	db.Exec(t, `vacuum analyze`)
	check("after analyze")
}

func TestRareFilterGivesShortPagesWithNext(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	insertTasks(t, db, 2*tasks.ScanRows+1)
	f := tasks.Filter{Source: "rare"}
	for range 2 {
		page := mustList(t, db, f)
		require.Empty(t, page.Tasks)
		require.False(t, page.Next.IsZero())
		f.After = page.Next
	}
	page := mustList(t, db, f)
	require.Len(t, page.Tasks, 1)
	require.Equal(t, "rare", page.Tasks[0].Source)
	require.True(t, page.Next.IsZero())
	require.Len(t, mustList(t, db, tasks.Filter{Phone: "999"}).Tasks, 1, "the index of phone numbers finds it at once")
}

func TestCursorOfLimitedListIsNoForeignTaskID(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	insertTasks(t, db, 2*tasks.ScanRows+1)
	mine := storetest.Submission(storetest.Keyed("k", "hello"), storetest.InQueue("mine"))
	db.MustSubmit(t, mine)
	f := tasks.Filter{Queues: []string{"mine"}, Limit: 10}
	var listed []task.ID
	for range 4 {
		page := mustList(t, db, f)
		listed = append(listed, listedIDs(page)...)
		if f.After = page.Next; f.After.IsZero() {
			break
		}
		_, err := db.Tasks.ByID(t.Context(), f.After)
		require.Equal(t, task.CodeNotFound, task.CodeOf(err), "the cursor must not be the id of a foreign task")
	}
	require.True(t, f.After.IsZero(), "the pages end")
	require.Equal(t, []task.ID{mine.ID}, listed)
}

func TestTimelineMergesAllLogsInOrder(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	s := storetest.Submission(storetest.Keyed("k", "hello"), func(s *tasks.Submission) { s.SourceIP, s.UserAgent = "192.0.2.7", "curl" })
	db.MustSubmit(t, s)
	require.True(t, db.MustSubmit(t, storetest.Submission(storetest.Keyed("k", "hello")))[0].Replayed)
	claimed := db.ClaimAs(t, "app", 1)[0]
	db.MustReport(t, task.Report{TaskID: s.ID, AppID: "app", ClaimID: claimed.ClaimID, Outcome: task.SentFailed, Message: "no signal", ErrorCode: "E1"})
	_, err := db.Tasks.RetryFailed(t.Context(), s.ID, store.Operator{Name: "tester", RequestID: "r", Reason: "the tower is back"})
	require.NoError(t, err)

	events, next, err := db.Tasks.Timeline(t.Context(), s.ID, tasks.TimelineCursor{}, 10)
	require.NoError(t, err)
	var kinds []tasks.EventKind
	for i, e := range events {
		kinds = append(kinds, e.Event)
		require.False(t, i > 0 && e.At.Before(events[i-1].At))
	}
	require.Equal(t, []tasks.EventKind{tasks.EventReceived, tasks.EventReplayed, tasks.EventClaimed, tasks.EventReport, tasks.EventVerdict}, kinds)
	require.Equal(t, "192.0.2.7", events[0].SourceIP)
	require.Equal(t, "curl", events[0].UserAgent)
	require.Equal(t, 200, events[0].StatusCode)
	require.Equal(t, claimed.ClaimID, events[2].ClaimID)
	require.Equal(t, tasks.TimelineEvent{
		At: events[3].At, Event: tasks.EventReport, AppID: "app", ClaimID: claimed.ClaimID, Status: 3, Verdict: "applied", ErrorCode: "E1", Message: "no signal",
	}, events[3])
	require.Equal(t, "the tower is back", events[4].Message)
	require.Equal(t, "retried", events[4].Verdict)
	require.Equal(t, "tester pending r", events[4].CallerName+" "+events[4].State+" "+events[4].RequestID)
	require.Zero(t, next)

	events, next, err = db.Tasks.Timeline(t.Context(), s.ID, tasks.TimelineCursor{}, 1)
	require.NoError(t, err)
	require.Len(t, events, 3, "a page has the newest lines of each log")
	require.Equal(t, []tasks.EventKind{tasks.EventReplayed, tasks.EventClaimed, tasks.EventVerdict}, store.Column(events, func(e tasks.TimelineEvent) tasks.EventKind { return e.Event }))
	events, next, err = db.Tasks.Timeline(t.Context(), s.ID, next, 1)
	require.NoError(t, err)
	require.Equal(t, []tasks.EventKind{tasks.EventReceived, tasks.EventReport}, store.Column(events, func(e tasks.TimelineEvent) tasks.EventKind { return e.Event }))
	require.Zero(t, next)
	events, _, err = db.Tasks.Timeline(t.Context(), task.NewID(), tasks.TimelineCursor{}, 1)
	require.NoError(t, err)
	require.Empty(t, events)

	db.Exec(t, `update send_logs set request_data = '{"request_id": [1e131071, 1e131071]}' where task_id = $1`, s.ID)
	events, _, err = db.Tasks.Timeline(t.Context(), s.ID, tasks.TimelineCursor{}, 10)
	require.NoError(t, err)
	require.Equal(t, tasks.EventClaimed, events[2].Event)
	require.Empty(t, events[2].RequestID, "a request_id that is not a string is left out: as text it could be very long")
}
