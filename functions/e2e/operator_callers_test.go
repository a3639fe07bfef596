package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// callerPath is where an operator changes a caller.
func callerPath(s *server, name string) string {
	s.t.Helper()
	return fmt.Sprintf("%scallers/%d", adminRoot, s.count(fmt.Sprintf(`select id from callers where name = '%s'`, name)))
}

// auditOf lists what was done to a caller, newest first.
func auditOf(s *server, name string) (actions []string) {
	s.t.Helper()
	r := s.get(adminRoot + "actions?subject=caller/" + callerPath(s, name)[len(adminRoot+"callers/"):])
	for _, item := range r.data("items").([]any) {
		actions = append(actions, item.(map[string]any)["action"].(string))
	}
	return actions
}

func TestRevokedOperatorTakesItsCallersWithIt(t *testing.T) {
	t.Parallel()
	s := serve(t)
	ops := newCaller(s, "ops", `"roles":["admin","sender"],"queues":["bulk"]`)
	deputy := newCaller(ops, "ops.deputy", `"roles":["admin","sender"],"queues":["bulk"]`)
	phone := newCaller(deputy, "ops.deputy.phone", `"roles":["sender"],"queues":["bulk"]`)
	given := newCaller(s, "ops.given", `"roles":["sender"],"queues":["bulk"]`)
	taken := ops.post(callerPath(s, "ops.given")+"/rotate", "")
	require.Equal(t, 200, taken.status, taken.text)
	given.password = taken.data("token").(string)
	free := newCaller(s, "ops.free", `"roles":["sender"],"queues":["bulk"]`)
	const poll = "/api/v1/sms/tasks/pending?app_id=app&queue=bulk"

	require.Equal(t, 200, s.post(callerPath(s, "ops")+"/rotate", "").status)
	for _, made := range []*server{deputy, phone, given, free} {
		require.NotEqual(t, 401, made.get(poll).status, "%s goes on when the operator's token is rotated", made.user)
	}
	revoked := s.post(callerPath(s, "ops")+"/revoke", "")
	require.Equal(t, 200, revoked.status, revoked.text)
	require.ElementsMatch(t, []any{"ops.deputy", "ops.deputy.phone", "ops.given"}, revoked.data("also_changed"))
	for _, made := range []*server{deputy, phone, given} {
		require.Equal(t, 401, made.get(poll).status, made.user)
		require.Equal(t, "caller.revoke", auditOf(s, made.user)[0], made.user)
	}
	require.Equal(t, 200, free.get(poll).status, "an admin without queues made it, and the operator never had its token")
	require.Nil(t, s.post(callerPath(s, "ops")+"/revoke", "").data("also_changed"))
}

func TestNarrowedOperatorNarrowsItsCallers(t *testing.T) {
	t.Parallel()
	s := serve(t)
	ops := newCaller(s, "ops", `"roles":["admin","sender","submitter"],"queues":["bulk","slow"]`)
	both := newCaller(ops, "ops.both", `"roles":["sender"],"queues":["bulk","slow"]`)
	slow := newCaller(ops, "ops.slow", `"roles":["sender"],"queues":["slow"]`)
	submits := newCaller(ops, "ops.submits", `"roles":["submitter"],"queues":["bulk"]`)
	other := newCaller(s, "other", `"roles":["sender"],"queues":["slow"]`)
	poll := func(by *server, queue string) int {
		return by.get("/api/v1/sms/tasks/pending?app_id=app&queue=" + queue).status
	}
	require.Equal(t, []int{200, 200}, []int{poll(both, "slow"), poll(slow, "slow")})

	narrowed := s.do("PUT", callerPath(s, "ops"), `{"queues":["bulk"],"roles":["admin","sender"],"max_waiting_tasks":7}`)
	require.Equal(t, 200, narrowed.status, narrowed.text)
	require.ElementsMatch(t, []any{"ops.both", "ops.slow", "ops.submits"}, narrowed.data("also_changed"))
	require.Equal(t, []int{200, 403, 401}, []int{poll(both, "bulk"), poll(both, "slow"), poll(slow, "slow")})
	require.Equal(t, 401, submits.get("/api/v1/sms/task"+nowhere).status, "no role was left")
	require.Equal(t, 200, poll(other, "slow"), "another caller goes on")
	require.EqualValues(t, 7, s.get(callerPath(s, "ops.both")).data("max_waiting_tasks"))
	require.Equal(t, []string{"caller.update", "caller.create"}, auditOf(s, "ops.both"))
	require.Equal(t, []string{"caller.revoke", "caller.create"}, auditOf(s, "ops.slow"))

	require.Equal(t, 200, s.do("PUT", callerPath(s, "ops"), `{"queues":[]}`).status)
	require.Equal(t, 403, poll(both, "slow"), "more for the operator is not more for its callers")
}

func TestLimitedOperatorMakesSoManyCallers(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	_, h := environment(t, url, func(c *fn.Config) { c.OperatorCallers = 3 })
	s := serveHandler(t, h).connect(url)
	ops := newCaller(s, "ops", `"roles":["admin"],"queues":["bulk"]`)
	deputy := newCaller(ops, "ops.deputy", `"roles":["admin"],"queues":["bulk"]`)
	for _, by := range []*server{ops, deputy} {
		newCaller(by, by.user+".1", `"roles":["admin"],"queues":["bulk"]`)
	}
	require.Equal(t, 200, ops.post(callerPath(s, "ops.1")+"/revoke", "").status)
	for _, by := range []*server{ops, deputy} {
		r := by.post(adminRoot+"callers", fmt.Sprintf(`{"name":%q,"roles":["admin"],"queues":["bulk"]}`, by.user+".2"))
		require.Equal(t, 403, r.status, r.text)
		require.Contains(t, r.text, "may make 3")
	}
	s.exec(`update callers set revoked_at = now() - interval '25 hours' where revoked_at is not null`)
	newCaller(deputy, "ops.deputy.2", `"roles":["admin"],"queues":["bulk"]`)
	peer := newCaller(s, "peer", `"roles":["admin"],"queues":["bulk"]`)
	newCaller(peer, "peer.1", `"roles":["admin"],"queues":["bulk"]`)
	newCaller(s, "ops.2", `"roles":["admin"],"queues":["bulk"]`)
}
