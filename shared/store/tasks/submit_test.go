package tasks_test

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestRepeatWithOneKeyIsReplayed(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	first := db.MustSubmit(t, storetest.Submission(storetest.Keyed("k", "a")))[0]
	again := db.MustSubmit(t, storetest.Submission(storetest.Keyed("k", "a")))[0]
	require.Equal(t, tasks.Submitted{ID: first.ID, State: task.Pending, Text: "a", Replayed: true}, again)

	claimed := db.ClaimAs(t, "app", 10)
	require.Len(t, claimed, 1)
	db.MustReport(t, task.Report{TaskID: first.ID, AppID: "app", Outcome: task.SentOK})
	require.Equal(t, task.Succeeded, db.MustSubmit(t, storetest.Submission(storetest.Keyed("k", "a")))[0].State, "a replay has the present state")
	require.Equal(t, 3, db.Count(t, `select count(*) from receive_logs where task_id = $1`, first.ID), "every call is logged")
	require.Equal(t, 1, db.Count(t, `select count(*) from tasks`))
}

func TestKeyWithAnotherBodyIsRefused(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubmit(t, storetest.Submission(storetest.Keyed("k", "a")))
	out := db.MustSubmit(t, storetest.Submission(storetest.Keyed("k", "b")))[0]
	require.Equal(t, task.CodeKeyReused, out.Refused.Code)
	require.Equal(t, 1, db.Count(t, `select count(*) from tasks`))
	require.Equal(t, 1, db.Count(t, `select count(*) from receive_logs where task_id is null and status_code = 400`))
}

func TestKeyOfDamagedTaskFailsAlone(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	damaged, intact := storetest.Submission(storetest.Keyed("damaged", "a")), storetest.Submission(storetest.Keyed("intact", "a"))
	db.MustSubmit(t, damaged, intact)
	db.Exec(t, `delete from task_live where id = $1`, damaged.ID)
	repeats := []*tasks.Submission{
		storetest.Submission(storetest.Keyed("damaged", "a")), storetest.Submission(storetest.Keyed("intact", "a")), storetest.Submission(storetest.Keyed("new", "a")),
	}
	outs, errs := db.Tasks.Submit(repeats)
	require.Error(t, errs[0])
	require.Equal(t, []error{nil, nil}, errs[1:])
	require.Equal(t, []any{intact.ID, true}, []any{outs[1].ID, outs[1].Replayed})
	require.Equal(t, 2, db.Count(t, `select count(*) from receive_logs where task_id = $1`, intact.ID), "the repeat is logged")
}

func TestEqualKeysInOneBatchAreOneTask(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	outs := db.MustSubmit(t, storetest.Submission(storetest.Keyed("k", "a")), storetest.Submission(storetest.Keyed("k", "a")), storetest.Submission(storetest.Keyed("k", "b")), storetest.Submission(storetest.Keyed("l", "c")))
	require.False(t, outs[0].Replayed && outs[1].Replayed)
	require.Equal(t, outs[0].ID, outs[1].ID)
	require.Equal(t, task.CodeKeyReused, outs[2].Refused.Code)
	require.Nil(t, outs[3].Refused)
	require.Equal(t, 2, db.Count(t, `select count(*) from tasks`))
}

func TestConcurrentCallsWithOneKeyCreateOneTask(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	for name, instances := range map[string][]*storetest.DB{
		"in one instance":  {storetest.OpenAt(t, url)},
		"in two instances": {storetest.OpenAt(t, url), storetest.OpenAt(t, url)},
	} {
		for round := range 20 {
			key := fmt.Sprint(name, round)
			ids := make([]task.ID, 12)
			var all sync.WaitGroup
			for i := range ids {
				all.Go(func() {
					err := storetest.RetryBusy(func() error {
						outs, errs := instances[i%len(instances)].Tasks.Submit([]*tasks.Submission{storetest.Submission(storetest.Keyed(key, "same")), storetest.Submission()})
						if errs[0] == nil && outs[0].Refused == nil {
							ids[i] = outs[0].ID
						}
						return errs[0]
					})
					if err != nil {
						t.Errorf("submit: %v", err)
					}
				})
			}
			all.Wait()
			for _, id := range ids {
				require.Equal(t, ids[0], id, name)
				require.False(t, id.IsZero(), name)
			}
		}
	}
	db := storetest.OpenAt(t, url)
	require.Equal(t, 40, db.Count(t, `select count(*) from tasks where content = 'same'`))
}

func TestLockedTableIsServerBusyAlsoWithAKey(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.MustSubmit(t, storetest.Submission(storetest.Keyed("first", "a")))
	db.HoldLock(t, `lock table task_live in access exclusive mode`)
	_, errs := db.Tasks.Submit([]*tasks.Submission{storetest.Submission(storetest.Keyed("k", "a"))})
	require.Equal(t, task.CodeServerBusy, task.CodeOf(errs[0]), "not key_in_flight: no other call has this key")
}

func TestKeyInFlightFailsOnlyItsCall(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	s, other := storetest.Submission(storetest.Keyed("k", "a")), storetest.Submission()
	tx, err := db.Owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `insert into submission_keys values ($1, $2, $3)`, s.Key, s.Fingerprint, task.NewID())
	require.NoError(t, err)

	outs, errs := db.Tasks.Submit([]*tasks.Submission{s, other})
	require.Equal(t, task.CodeKeyInFlight, task.CodeOf(errs[0]))
	require.NoError(t, errs[1])
	require.Equal(t, other.ID, outs[1].ID)
	require.NoError(t, tx.Rollback(t.Context()))
	again := storetest.Submission(storetest.Keyed("k", "a"))
	require.Equal(t, tasks.Submitted{ID: again.ID, State: task.Pending, Text: "a"}, db.MustSubmit(t, again)[0], "the key is free")
}

func TestCommitWithLostResponseIsRecognised(t *testing.T) {
	t.Parallel()
	for name, submission := range map[string]func() *tasks.Submission{
		"without a key":                  func() *tasks.Submission { return storetest.Submission() },
		"with a key":                     func() *tasks.Submission { return storetest.Submission(storetest.Keyed("k", "a")) },
		"with default content":           func() *tasks.Submission { return storetest.Submission(storetest.NoContent) },
		"with default content and a key": func() *tasks.Submission { return storetest.Submission(storetest.Keyed("k", ""), storetest.NoContent) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := sandbox.NewDatabase(t)
			proxy := sandbox.NewProxy(t, url)
			db := storetest.OpenAt(t, proxy.URL())
			db.Exec(t, `insert into default_sms_data (phone_number, content) values ('13800138000', 'a default')`)
			require.NoError(t, db.Ping(t.Context()))

			lost := proxy.LoseResponse(sandbox.Containing("insert into tasks"))
			s := submission()
			out := db.MustSubmit(t, s)[0]
			<-lost
			require.Nil(t, out.Refused)
			require.Equal(t, s.ID, out.ID)
			require.False(t, out.Replayed, "the caller made one call")
			require.Equal(t, 1, db.Count(t, `select count(*) from tasks`))
			require.Equal(t, 1, db.Count(t, `select count(*) from receive_logs`))
		})
	}
}

func TestUnfinishedCommitIsAwaited(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := storetest.OpenAt(t, url)
	s := storetest.Submission()
	// This transaction stands for the commit of the first try: the connection broke, but the server has not finished the commit.
	commit := db.HoldLock(t, `with body as (
			insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content) values ($1, 0, 'default', 5, 3, 0, '13800138000', 'hello')
		) insert into task_live (id, state, queue, priority, max_retries, on_unknown) values ($1, 1, 'default', 5, 3, 0)`, s.ID)
	broken := storetest.ConnectAsOwner(t, url)
	require.NoError(t, broken.Close(t.Context()))
	returned := make(chan tasks.Submitted, 1)
	tries := 0
	go func() {
		f := db.Tasks.NewFlush(s)
		err := db.RetryLostCommit(t.Context(), func(again bool) error {
			if tries++; tries == 1 {
				return store.WrapConnectionLost(broken, io.ErrUnexpectedEOF)
			}
			return f.Commit(t.Context(), again)
		})
		if outs, resolveErr := f.Resolve(t.Context()); err == nil && resolveErr == nil {
			returned <- outs[0]
		}
		close(returned)
	}()
	db.AwaitLockWait(t)
	commit()
	out, ok := <-returned
	require.True(t, ok)
	require.Equal(t, tasks.Submitted{ID: s.ID, State: task.Pending, Text: "hello"}, out)
	require.Equal(t, 1, db.Count(t, `select count(*) from tasks`))
}

func TestDatabaseOutageIsServerBusy(t *testing.T) {
	t.Parallel()
	proxy := sandbox.NewProxy(t, sandbox.NewDatabase(t))
	db := storetest.OpenAt(t, proxy.URL())
	proxy.Cut()
	_, errs := db.Tasks.Submit([]*tasks.Submission{storetest.Submission()})
	require.Equal(t, task.CodeServerBusy, task.CodeOf(errs[0]))
	proxy.Restore()
	require.Equal(t, 0, db.Count(t, `select count(*) from tasks`))
}

func TestDefaultContentIsSentOnce(t *testing.T) {
	t.Parallel()
	db, other := storetest.OpenTwo(t)
	require.Equal(t, task.CodeNoDefault, db.MustSubmit(t, storetest.Submission(storetest.NoContent))[0].Refused.Code)

	db.Exec(t, `insert into default_sms_data (phone_number, content) values ('13800138000', 'welcome')`)
	var all sync.WaitGroup
	var mu sync.Mutex
	var accepted []tasks.Submitted
	for i := range 8 {
		all.Go(func() {
			outs, errs := []*storetest.DB{db, other}[i%2].Tasks.Submit([]*tasks.Submission{storetest.Submission(storetest.NoContent), storetest.Submission(storetest.NoContent)})
			mu.Lock()
			defer mu.Unlock()
			for n := range outs {
				if errs[n] == nil && outs[n].Refused == nil {
					accepted = append(accepted, outs[n])
				}
			}
		})
	}
	all.Wait()
	require.Len(t, accepted, 1)
	require.Equal(t, "welcome", accepted[0].Text)
	require.Equal(t, task.CodeDefaultSent, db.MustSubmit(t, storetest.Submission(storetest.NoContent))[0].Refused.Code)
}

func TestReplayDoesNotUseDefaultContentAgain(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into default_sms_data (phone_number, content) values ('13800138000', 'welcome')`)
	call := func() *tasks.Submission {
		return storetest.Submission(storetest.Keyed("k", ""), storetest.NoContent)
	}
	outs := db.MustSubmit(t, call(), call())
	require.Equal(t, outs[0].ID, outs[1].ID)
	again := db.MustSubmit(t, call())[0]
	require.True(t, again.Replayed)
	require.Equal(t, outs[0].ID, again.ID)
	require.Equal(t, "welcome", again.Text)
}

func TestReusedKeyDoesNotUseDefaultContent(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into default_sms_data (phone_number, content) values ('13800138000', 'welcome')`)
	db.MustSubmit(t, storetest.Submission(storetest.Keyed("k", "other")))
	out := db.MustSubmit(t, storetest.Submission(storetest.Keyed("k", ""), storetest.NoContent))[0]
	require.Equal(t, task.CodeKeyReused, out.Refused.Code)
	require.Equal(t, 1, db.Count(t, `select count(*) from default_sms_data where not is_sent`))
}

func TestDefaultTemplateIsTheActiveOneWithTheLowestID(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	db.Exec(t, `insert into sms_templates (template_name, template_content, is_active)
		values ('old', 'old {code}', false), ('first', 'code {code}', true), ('second', 'hello {name}', true)`)
	draft := func(d task.Draft) func(*tasks.Submission) {
		return func(s *tasks.Submission) { d.UseTemplate = true; s.Draft = d }
	}
	outs := db.MustSubmit(t,
		storetest.Submission(draft(task.Draft{Content: "code=1%2B2&extra=x"})),
		storetest.Submission(draft(task.Draft{Params: map[string]string{"name": "{code}"}, TemplateName: "second"})),
		storetest.Submission(draft(task.Draft{Params: map[string]string{"code": "9"}, TemplateID: 2})),
		storetest.Submission(draft(task.Draft{Params: map[string]string{"code": "9"}, TemplateID: 1})),
		storetest.Submission(draft(task.Draft{Content: "name=x"})),
	)
	require.Equal(t, "code 1+2", outs[0].Text)
	require.Equal(t, []string{"extra"}, outs[0].Unused)
	require.Equal(t, "hello {code}", outs[1].Text, "a value is never a placeholder")
	require.Equal(t, "code 9", outs[2].Text)
	require.Equal(t, "template_id", outs[3].Refused.Fields[0].Name, "an inactive template is not used")
	require.Equal(t, "params.code", outs[4].Refused.Fields[0].Name)
	require.Equal(t, 3, db.Count(t, `select count(*) from tasks`))
	require.Equal(t, 3, db.Count(t, `select count(*) from receive_logs where use_template and status_code = 200`))
}

func TestReplayOfAcceptedCallIsNeverRefused(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	db := storetest.OpenAt(t, url)
	first := db.MustSubmit(t, storetest.Submission(storetest.Keyed("k", "some BadWord here")))[0]
	require.Nil(t, first.Refused)
	db.Exec(t, `insert into blocked_words (word, folded) values ('badword', 'badword')`)
	db = storetest.OpenAt(t, url) // reads the blocked words again

	require.Equal(t, task.CodeBlocked, db.MustSubmit(t, storetest.Submission(storetest.Keyed("l", "ＢＡＤword")))[0].Refused.Code, "in upper or lower case, and in any width")
	require.Equal(t, task.CodeBlocked, db.MustSubmit(t, storetest.Submission(func(s *tasks.Submission) { s.Draft.Content = "badword" }))[0].Refused.Code)
	require.Equal(t, first.ID, db.MustSubmit(t, storetest.Submission(storetest.Keyed("k", "some BadWord here")))[0].ID)

	expired := task.Refuse(task.CodeInvalid, "expires_at has passed")
	late := func(key string) *tasks.Submission {
		return storetest.Submission(storetest.Keyed(key, "some BadWord here"), func(s *tasks.Submission) { s.Refused = expired })
	}
	require.Equal(t, first.ID, db.MustSubmit(t, late("k"))[0].ID)
	require.Equal(t, expired, db.MustSubmit(t, late("m"))[0].Refused)
}

func TestRefusedRequestWithAnyBytesIsLogged(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	requests := []string{
		``, `{`, `null`, `"\u0000"`, `{"a":"\ud800"}`, "\xff\xfe", "\x00", `{"a":1e999999}`, `{"a":-1E-999999}`, `{"e":"1e5 \" 2e9"}`,
		strings.Repeat("[", 5000) + strings.Repeat("]", 5000), `{"a":"` + strings.Repeat("é", 9000) + `"}`, `{"phone_number":"1'; drop table tasks; --"}`,
	}
	subs := make([]*tasks.Submission, len(requests))
	for i, r := range requests {
		subs[i] = storetest.Submission(func(s *tasks.Submission) {
			s.Request, s.UserAgent = []byte(r), "\xffagent\x00"
			s.Draft.Content, s.Phone = r, ""
			s.Refused = task.Refuse(task.CodeInvalid, "refused \x00")
		})
	}
	for _, out := range db.MustSubmit(t, subs...) {
		require.Equal(t, task.CodeInvalid, out.Refused.Code)
	}
	require.Equal(t, len(requests), db.Count(t, `select count(*) from receive_logs where status_code = 400 and task_id is null and request_data is not null`))
	require.Zero(t, db.Count(t, `select count(*) from tasks`))
}

func dropLogPartitions(t *testing.T, db *storetest.DB) {
	t.Helper()
	db.Exec(t, `do $$ declare p regclass; begin
		for p in select inhrelid from pg_inherits where inhparent in ('receive_logs'::regclass, 'send_logs'::regclass, 'report_logs'::regclass) loop
			execute 'drop table ' || p;
		end loop; end $$`)
}

func TestMissingLogPartitionIsCreated(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	s, cancelled := storetest.Submission(), storetest.Submission(storetest.InQueue("other"))
	dropLogPartitions(t, db)
	db.MustSubmit(t, s, cancelled)
	dropLogPartitions(t, db)
	require.Len(t, db.ClaimAs(t, "app", 1), 1)
	dropLogPartitions(t, db)
	require.Equal(t, task.Applied, db.MustReport(t, task.Report{TaskID: s.ID, AppID: "app", Outcome: task.SentOK}).Verdict)
	dropLogPartitions(t, db)
	_, err := db.Tasks.Cancel(t.Context(), cancelled.ID, nil)
	require.NoError(t, err)
	require.Equal(t, 12, db.Count(t, `select count(*) from pg_inherits where inhparent in ('receive_logs'::regclass, 'send_logs'::regclass, 'report_logs'::regclass)`), "for each log, this month and the next three")
}

func TestScheduledTaskWaitsAndExpiredTaskFails(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	later := storetest.Submission(func(s *tasks.Submission) { s.SendAt = time.Now().Add(time.Hour) })
	expiring := storetest.Submission(func(s *tasks.Submission) { s.TTL = time.Millisecond })
	laterWithTTL := storetest.Submission(func(s *tasks.Submission) { s.SendAt = time.Now().Add(time.Hour); s.TTL = time.Minute })
	outs := db.MustSubmit(t, later, expiring, laterWithTTL)
	require.Equal(t, task.Scheduled, outs[0].State)
	require.Equal(t, task.Pending, outs[1].State)
	require.WithinDuration(t, laterWithTTL.SendAt.Add(time.Minute), db.MustTask(t, laterWithTTL.ID).ExpiresAt, time.Second, "a ttl counts from the send time")
	require.Eventually(t, func() bool { return time.Now().After(db.MustTask(t, expiring.ID).ExpiresAt) }, time.Second, 10*time.Millisecond)
	require.Empty(t, db.ClaimAs(t, "app", 10))
	stored := db.MustTask(t, expiring.ID)
	require.Equal(t, task.Failed, stored.State, "the claim processed the due tasks, and this one has expired")
	require.Equal(t, task.Expired, stored.Reason)
}

// All flushes insert keys in the same order, so two flushes with the same keys cannot wait for
// each other. A deadlock would also fail submissions of other callers.
func TestEqualKeysInOppositeOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	const greedy, modest = 1, 2 // callers
	db := storetest.Open(t)
	batch := func(reverse bool) []*tasks.Submission {
		subs := make([]*tasks.Submission, 300)
		for i := range subs {
			subs[i] = storetest.Submission(storetest.FromCaller(greedy), storetest.Keyed(fmt.Sprint(i), "x"))
		}
		if reverse {
			slices.Reverse(subs)
		}
		return subs
	}
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			outs, errs := db.Tasks.Submit(batch(i%2 == 0))
			for n, err := range errs {
				if err == nil && outs[n].Refused != nil {
					t.Error(outs[n].Refused)
				} else if err != nil && task.CodeOf(err) != task.CodeKeyInFlight && task.CodeOf(err) != task.CodeServerBusy {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	for going := true; going; {
		_, errs := db.Tasks.Submit([]*tasks.Submission{storetest.Submission(storetest.FromCaller(modest))})
		require.NoError(t, errs[0])
		select {
		case <-done:
			going = false
		default:
		}
	}
	require.Equal(t, 300, db.Count(t, `select count(*) from submission_keys`))
	require.Equal(t, 300, db.Count(t, `select count(*) from tasks where caller_id = $1`, greedy))
}
