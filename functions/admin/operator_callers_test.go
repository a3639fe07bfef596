package admin_test

import (
	"fmt"
	"path"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
)

// auditOf returns the audited actions on a caller, newest first.
func auditOf(s *cluster.Client, name string) []any {
	s.T.Helper()
	return s.AuditedActions("caller/" + path.Base(s.CallerPath(name)))
}

// poll returns the status of a claim.
func poll(by *cluster.Client, queue string) int {
	by.T.Helper()
	return by.Get(cluster.SMSPath + "tasks/pending?app_id=app&queue=" + queue).Status
}

func TestRevokeOperatorRevokesItsCallers(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	ops := s.NewCallerWith("ops", `"roles":["admin","sender"],"queues":["bulk"]`)
	deputy := ops.NewCallerWith("ops.deputy", `"roles":["admin","sender"],"queues":["bulk"]`)
	phone := deputy.NewCallerWith("ops.deputy.phone", `"roles":["sender"],"queues":["bulk"]`)
	adopted := s.NewCallerWith("ops.adopted", `"roles":["sender"],"queues":["bulk"]`) // belongs to ops after the next line
	rotated := ops.Post(s.CallerPath("ops.adopted")+"/rotate", "").RequireOK()
	adopted.Password = rotated.Data("token").(string)
	independent := s.NewCallerWith("ops.independent", `"roles":["sender"],"queues":["bulk"]`)

	s.Post(s.CallerPath("ops")+"/rotate", "").RequireOK()
	for _, caller := range []*cluster.Client{deputy, phone, adopted, independent} {
		require.NotEqual(t, 401, poll(caller, "bulk"), "%s stays valid when the operator's token is rotated", caller.User)
	}
	revoked := s.Post(s.CallerPath("ops")+"/revoke", "").RequireOK()
	require.ElementsMatch(t, []any{"ops.deputy", "ops.deputy.phone", "ops.adopted"}, revoked.Data("also_changed"))
	for _, caller := range []*cluster.Client{deputy, phone, adopted} {
		require.Equal(t, 401, poll(caller, "bulk"), caller.User)
		require.Equal(t, "caller.revoke", auditOf(s, caller.User)[0], caller.User)
	}
	require.Equal(t, 200, poll(independent, "bulk"), "an admin who is not limited to queues created this caller, and the operator never had its token")
	require.Nil(t, s.Post(s.CallerPath("ops")+"/revoke", "").Data("also_changed"))
}

// Access that a limited operator has granted must end when the operator is revoked. So an operator cannot change callers of other
// limited operators. If a caller belongs to no operator, the first limited operator that grants it more or rotates its token becomes
// its operator.
func TestLimitedOperatorChangesNoCallersOfAnother(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	const grants = `"roles":["admin","sender"],"queues":["bulk","slow"]`
	const senderOfBulk = `"roles":["sender"],"queues":["bulk"]`
	ops := s.NewCallerWith("ops", grants)
	sub := s.NewCallerWith("ops.sub", grants)
	phone := sub.NewCallerWith("ops.sub.phone", senderOfBulk)
	upper := ops.NewCallerWith("ops.sub.upper", senderOfBulk)
	s.NewCallerWith("ops.adopted", senderOfBulk)

	for _, c := range []struct{ operator, caller *cluster.Client }{{ops, phone}, {sub, upper}} {
		at := s.CallerPath(c.caller.User)
		for _, r := range []cluster.Reply{
			c.operator.Post(at+"/rotate", ""), c.operator.Do("PUT", at, `{"queues":["bulk","slow"]}`), c.operator.Do("PUT", at, `{"roles":["admin"]}`),
		} {
			require.Equal(t, 403, r.Status, r.Text)
			require.Contains(t, r.Text, "belongs to another admin")
		}
		require.Equal(t, []int{200, 403}, []int{poll(c.caller, "bulk"), poll(c.caller, "slow")}, "the caller's token stays valid")
		require.Equal(t, 200, c.operator.Get(at).Status)
	}

	// An operator may change the callers that its own callers created, and callers that belong to no operator.
	ops.Do("PUT", s.CallerPath("ops.adopted"), `{"queues":["bulk","slow"]}`).RequireOK()
	ops.Post(s.CallerPath("ops.sub")+"/rotate", "").RequireOK()
	rotated := ops.Post(s.CallerPath(phone.User)+"/rotate", "").RequireOK()
	phone.Password = rotated.Data("token").(string)
	require.Equal(t, 200, poll(phone, "bulk"))

	other := s.NewCallerWith("ops.other", senderOfBulk)
	narrowed := s.Do("PUT", s.CallerPath("ops"), `{"queues":["bulk"]}`)
	require.ElementsMatch(t, []any{"ops.sub", "ops.adopted"}, narrowed.Data("also_changed"))
	revoked := s.Post(s.CallerPath("ops")+"/revoke", "")
	require.ElementsMatch(t, []any{"ops.sub", "ops.sub.phone", "ops.sub.upper", "ops.adopted"}, revoked.Data("also_changed"))
	require.Equal(t, []int{401, 401, 200}, []int{poll(phone, "bulk"), poll(upper, "bulk"), poll(other, "bulk")})
}

func TestNarrowedOperatorNarrowsItsCallers(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	ops := s.NewCallerWith("ops", `"roles":["admin","sender","submitter"],"queues":["bulk","slow"]`)
	both := ops.NewCallerWith("ops.both", `"roles":["sender"],"queues":["bulk","slow"]`)
	slow := ops.NewCallerWith("ops.slow", `"roles":["sender"],"queues":["slow"]`)
	submits := ops.NewCallerWith("ops.submits", `"roles":["submitter"],"queues":["bulk"]`)
	other := s.NewCallerWith("other", `"roles":["sender"],"queues":["slow"]`)
	require.Equal(t, []int{200, 200}, []int{poll(both, "slow"), poll(slow, "slow")})

	narrowed := s.Do("PUT", s.CallerPath("ops"), `{"queues":["bulk"],"roles":["admin","sender"],"max_waiting_tasks":7}`).RequireOK()
	require.ElementsMatch(t, []any{"ops.both", "ops.slow", "ops.submits"}, narrowed.Data("also_changed"))
	require.Equal(t, []int{200, 403, 401}, []int{poll(both, "bulk"), poll(both, "slow"), poll(slow, "slow")})
	require.Equal(t, 401, submits.Get("/api/v1/sms/task"+cluster.UnknownIDPath).Status, "a caller that has no role left is revoked")
	require.Equal(t, 200, poll(other, "slow"), "another caller is not changed")
	require.EqualValues(t, 7, s.Get(s.CallerPath("ops.both")).Data("max_waiting_tasks"))
	require.Equal(t, []any{"caller.update", "caller.create"}, auditOf(s, "ops.both"))
	require.Equal(t, []any{"caller.revoke", "caller.create"}, auditOf(s, "ops.slow"))

	s.Do("PUT", s.CallerPath("ops"), `{"queues":[]}`).RequireOK()
	require.Equal(t, 403, poll(both, "slow"), "the grants of its callers are not widened")
}

func TestNumberOfCallersOfLimitedOperatorIsLimited(t *testing.T) {
	t.Parallel()
	s := cluster.ServeOn(t, sandbox.NewDatabase(t), func(c *settings.Config) { c.OperatorCallers = 3 })
	ops := s.NewCallerWith("ops", `"roles":["admin"],"queues":["bulk"]`)
	deputy := ops.NewCallerWith("ops.deputy", `"roles":["admin"],"queues":["bulk"]`)
	for _, by := range []*cluster.Client{ops, deputy} {
		by.NewCallerWith(by.User+".1", `"roles":["admin"],"queues":["bulk"]`)
	}
	ops.Post(s.CallerPath("ops.1")+"/revoke", "").RequireOK()
	for _, by := range []*cluster.Client{ops, deputy} {
		r := by.Post(cluster.AdminPath+"callers", fmt.Sprintf(`{"name":%q,"roles":["admin"],"queues":["bulk"]}`, by.User+".2"))
		require.Equal(t, 403, r.Status, r.Text)
		require.Contains(t, r.Text, "may make 3")
	}
	s.Exec(`update callers set revoked_at = now() - interval '25 hours' where revoked_at is not null`) // revoked callers count for a day
	deputy.NewCallerWith("ops.deputy.2", `"roles":["admin"],"queues":["bulk"]`)
	peer := s.NewCallerWith("peer", `"roles":["admin"],"queues":["bulk"]`) // has its own limit
	peer.NewCallerWith("peer.1", `"roles":["admin"],"queues":["bulk"]`)
	s.NewCallerWith("ops.2", `"roles":["admin"],"queues":["bulk"]`) // the built-in admin has no limit
}

func TestOperatorSharesItsQuotasWithItsCallers(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	limits := func(c *settings.Config) { c.WaitingTasks, c.WaitingMessages = 5, 5 }
	s := cluster.ServeOn(t, url, limits)
	const grants = `"roles":["admin","submitter"],"queues":["bulk"]`
	ops := s.NewCallerWith("ops", grants)
	deputy := ops.NewCallerWith("ops.deputy", grants)
	helper := deputy.NewCallerWith("ops.deputy.helper", grants)
	modest := s.NewCallerWith("modest", grants)

	// New items may be counted twice until the next count in the database, so these calls are repeated.
	waitSubmits := func(by *cluster.Client, want ...int) {
		t.Helper()
		cluster.Eventually(t, func() bool {
			return slices.Equal(want, by.Post("/api/v1/sms/send/batch", cluster.KeyedBatch(1, 2, `,"queue":"bulk"`)).Codes())
		})
	}
	waitSubmits(ops, 200, 200)
	waitSubmits(deputy, 200, 200)
	waitSubmits(helper, 200, 429) // one quota for all three
	waitSubmits(modest, 200, 200) // another caller has its own quota
	send := func(by *cluster.Client, id int) int {
		return by.Post("/api/v1/messages", fmt.Sprintf(`{"client_msg_id":"%d","to":"user","type":"t","data":"x"}`, id)).Status
	}
	for i, by := range []*cluster.Client{ops, deputy, helper, deputy, helper} {
		cluster.Eventually(t, func() bool { return send(by, i) == 200 }, by.User)
	}
	require.Equal(t, []int{429, 429, 429, 200}, []int{send(ops, 9), send(deputy, 9), send(helper, 9), send(modest, 9)})

	// Another process gets its counts from the database.
	other := cluster.ServeOn(t, url, limits)
	for _, by := range []*cluster.Client{ops, helper} {
		by.URL = other.URL
		require.Equal(t, 429, send(by, 10), by.User)
	}
	cluster.Eventually(t, func() bool {
		return ops.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hello","queue":"bulk"}`).Status == 429
	}, "another process refuses the task")
}
