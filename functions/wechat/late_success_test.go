package wechat_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// unknown orders a message that is delivered, whose answer is lost.
func (c *wechatServer) unknown() subscribe.Submitted {
	c.T.Helper()
	c.fake.Grant("ann", "T1", 1)
	c.fake.InjectFault(sandbox.WeChatFault{Drop: true, After: true, Times: 1})
	o := c.order(1, func(s *subscribe.Submission) { s.OnUnknown = task.Fail })
	c.work()
	require.Equal(c.T, "failed/unknown, retries 0; row 2 no_answer; asked 1, delivered 1", c.fate(o))
	return o
}

func TestMissingConsentToOtherTemplateIsNoSuccess(t *testing.T) {
	t.Parallel()
	c := startWeChat(t, sandbox.WeChatOptions{OneTime: true})
	c.unknown()
	o := c.order(1, func(s *subscribe.Submission) { s.TemplateID = "T2" })
	c.work()
	require.Equal(t, "failed/rejected, retries 0; row 2 43101; asked 2, delivered 1", c.fate(o))
}

func TestSuccessReportedDuringTokenFetchCounts(t *testing.T) {
	t.Parallel()
	c := startWeChat(t, sandbox.WeChatOptions{})
	first := c.unknown()
	was, err := c.db.Tasks.ByID(t.Context(), first.TaskID)
	require.NoError(t, err)
	c.Exec(`delete from provider_tokens`)
	c.open() // it holds no token
	c.fake.InjectFault(sandbox.WeChatFault{Tokens: true, Delay: time.Minute})
	second := c.order(1)
	c.begin()
	c.until("a token is asked for", func() bool { return c.fake.TokenCalls() == 2 })

	outs, errs := c.db.Tasks.Report([]*tasks.Report{{Request: []byte(`{}`), Report: task.Report{TaskID: first.TaskID, AppID: was.AppID, CallerID: task.ServiceCaller, ClaimID: was.ClaimID}}})
	require.NoError(t, errs[0])
	require.Equal(t, task.Applied, outs[0].Verdict)
	c.fake.ClearFaults()
	c.until("the second send is settled", func() bool { return c.Count(`select count(*) from task_live where state = 2`) == 0 })
	require.Len(t, c.fake.Sends(), 1)
	row, err := c.db.Subscribe.LogByID(t.Context(), second.ID)
	require.NoError(t, err)
	require.Equal(t, task.SubscribeSent, row.Status)
}
