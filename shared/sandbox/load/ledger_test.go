package load

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

const (
	waiting = "00000000-0000-7000-8000-000000000001"
	claimed = "00000000-0000-7000-8000-000000000002"
	done    = "00000000-0000-7000-8000-000000000003"
	unknown = "00000000-0000-7000-8000-000000000004"
)

// testLedger returns the ledger with which the rows of TestCheckTasks agree.
func testLedger(t *testing.T) *Ledger {
	l := NewLedger()
	require.NoError(t, l.Submitted("a", waiting))
	require.NoError(t, l.Submitted("b", claimed))
	require.NoError(t, l.Submitted("c", done))
	l.Claimed(claimed, "7")
	l.Claimed(done, "8")
	l.Reported(done)
	return l
}

func TestCheckTasks(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), sandbox.NewDatabase(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	_, err = conn.Exec(t.Context(), `
insert into tasks (id, caller_id, queue, priority, max_retries, on_unknown, phone_number, content)
select ('00000000-0000-7000-8000-00000000000' || n)::uuid, 0, 'default', 5, 3, 0, '13800138000', 'hi' from generate_series(1, 3) n;
insert into task_live (id, queue, state, priority, max_retries, on_unknown, claim_id, app_id, due_at) values
    ('00000000-0000-7000-8000-000000000001', 'default', 1, 5, 3, 0, null, null, null),
    ('00000000-0000-7000-8000-000000000002', 'default', 2, 5, 3, 0, 7, 'app', now() + interval '1 hour');
insert into task_done (id, status, reason, retry_count, ended, claim_id) values ('00000000-0000-7000-8000-000000000003', 2, 0, 0, 1, 8)`)
	require.NoError(t, err)
	require.NoError(t, testLedger(t).CheckTasks(t.Context(), conn))

	for name, c := range map[string]struct {
		change func(*Ledger)
		want   string
	}{
		"lost":                       {func(l *Ledger) { _ = l.Submitted("d", unknown) }, "task " + unknown + " has no row"},
		"not submitted":              {func(l *Ledger) { delete(l.tasks, "a") }, "task " + waiting + " was not submitted"},
		"claimed twice":              {func(l *Ledger) { l.Claimed(claimed, "7") }, "task " + claimed + " was claimed 2 times and reported 0 times"},
		"reported twice":             {func(l *Ledger) { l.Reported(done) }, "task " + done + " was claimed 1 times and reported 2 times"},
		"reported, not succeeded":    {func(l *Ledger) { l.Reported(claimed) }, "task " + claimed + " was reported, but has not succeeded by the recorded claim"},
		"succeeded by another claim": {func(l *Ledger) { l.claims[done][0] = "9" }, "task " + done + " was reported, but has not succeeded by the recorded claim"},
		"final without a report":     {func(l *Ledger) { delete(l.reports, done) }, "task " + done + " is final, but was not reported"},
		"claim lost":                 {func(l *Ledger) { l.Claimed(waiting, "6") }, "task " + waiting + " does not have the recorded claim"},
	} {
		l := testLedger(t)
		c.change(l)
		require.EqualError(t, l.CheckTasks(t.Context(), conn), c.want, name)
	}
}

func TestCheckTasksDone(t *testing.T) {
	t.Parallel()
	l := testLedger(t)
	require.EqualError(t, l.Submitted("a", unknown), "key a returned "+waiting+" and "+unknown)
	require.ErrorContains(t, l.CheckTasksDone(), "task "+waiting+" was claimed 0 times and reported 0 times")
	require.ErrorContains(t, l.CheckTasksDone(), "task "+claimed+" was claimed 1 times and reported 0 times")
}

func TestCheckMessages(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), sandbox.NewDatabase(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	l := NewLedger()
	require.NoError(t, l.CheckMessages(t.Context(), conn))
	l.Sent(Message{"ann", 1}, Sent{ID: waiting, Ack: "saved"})
	require.EqualError(t, l.CheckMessages(t.Context(), conn), "1 messages were acknowledged; the database has 0 of them, and 0 messages of their senders in all")
}

func TestCheckReceived(t *testing.T) {
	t.Parallel()
	l := NewLedger()
	for _, m := range []Message{{"ann", 1}, {"ann", 2}, {"ann", 3}, {"bob", 1}} {
		l.Sent(m, Sent{ID: waiting, Ack: "accepted"})
	}
	for _, m := range []Message{{"ann", 1}, {"bob", 1}, {"ann", 3}, {"bob", 1}} {
		l.Received(m)
	}
	require.EqualError(t, l.CheckReceived(), "message 2 of ann was not received")
	l.Received(Message{"ann", 2})
	l.Received(Message{"ann", 1})
	require.NoError(t, l.CheckReceived())
	require.EqualError(t, l.CheckReceivedOnce(), "message 1 of ann was received 2 times\nmessage 1 of bob was received 2 times")
	sent, received, repeated := l.Messages()
	require.Equal(t, []int{4, 4, 2}, []int{sent, received, repeated})
	require.Equal(t, map[string]int{"ann": 1}, l.Overtaken(), "a repeat does not count as overtaken")
	l.Received(Message{"eve", 1})
	require.EqualError(t, l.CheckReceived(), "message 1 of eve was received and not acknowledged")
}
