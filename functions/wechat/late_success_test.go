package wechat_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// submitUnknown submits a message that is delivered, and whose response is lost.
func (c *wechatServer) submitUnknown() subscribe.Submitted {
	c.T.Helper()
	c.fake.Grant("ann", "T1", 1)
	c.fake.InjectFault(sandbox.WeChatFault{Drop: true, DeliverFirst: true, Times: 1})
	o := c.submit(1, func(s *subscribe.Submission) { s.OnUnknown = task.Fail })
	c.run()
	require.Equal(c.T, "failed/unknown, retries 0; row 2 no_answer; calls 1, delivered 1", c.outcome(o))
	return o
}

func TestMissingConsentToOtherTemplateIsNoSuccess(t *testing.T) {
	t.Parallel()
	c := startWeChat(t, sandbox.WeChatOptions{OneTime: true})
	c.submitUnknown()
	o := c.submit(1, func(s *subscribe.Submission) { s.TemplateID = "T2" })
	c.run()
	require.Equal(t, "failed/rejected, retries 0; row 2 43101; calls 2, delivered 1", c.outcome(o))
}

func TestSuccessReportedDuringTokenFetchCounts(t *testing.T) {
	t.Parallel()
	c := startWeChat(t, sandbox.WeChatOptions{})
	first := c.submitUnknown()
	failed, err := c.db.Tasks.ByID(t.Context(), first.TaskID)
	require.NoError(t, err)
	c.Exec(`delete from provider_tokens`)
	c.start() // without a cached token
	second := c.submit(1)
	c.beginWithoutToken()

	outs, errs := c.db.Tasks.Report([]*tasks.Report{{Request: []byte(`{}`), Report: task.Report{TaskID: first.TaskID, AppID: failed.AppID, CallerID: task.ServiceCaller, ClaimID: failed.ClaimID}}})
	require.NoError(t, errs[0])
	require.Equal(t, task.Applied, outs[0].Verdict)
	c.fake.ClearFaults()
	c.until("the second send is settled", func() bool { return c.Count(`select count(*) from task_live where state = 2`) == 0 })
	require.Len(t, c.fake.Sends(), 1)
	row, err := c.db.Subscribe.LogByID(t.Context(), second.ID)
	require.NoError(t, err)
	require.Equal(t, task.SubscribeSent, row.Status)
}
