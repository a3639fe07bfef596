package admin_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/admin"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestAuditEntryShowsTheChange(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	ctx := t.Context()
	created, err := db.Admin.AddTemplate(ctx, "验证码模板", "您的验证码是{code}", storetest.Tester)
	require.NoError(t, err)
	for range 2 {
		_, err = db.Admin.EditTemplate(ctx, created.ID, storetest.Tester, func(x *admin.Template) { x.Content = "code {code}" })
		require.NoError(t, err)
	}
	log := db.Actions(t, fmt.Sprintf("template/%d", created.ID))
	require.Equal(t, []string{"template.create", "template.update"}, storetest.ActionNames(log), "an edit that changes nothing has no entry")
	require.Nil(t, log[0].Before)
	require.JSONEq(t, `{"template_name":"验证码模板","template_content":"您的验证码是{code}","is_active":true}`, string(log[1].Before))
	require.JSONEq(t, `{"template_name":"验证码模板","template_content":"code {code}","is_active":true}`, string(log[1].After))
	require.Equal(t, storetest.Tester, store.Operator{CallerID: log[1].CallerID, Name: log[1].CallerName, RequestID: log[1].RequestID})
}

func TestActionsArePagedNewestFirst(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	for range 5 {
		_, err := db.Admin.AddTemplate(t.Context(), "name", "content", storetest.Tester)
		require.NoError(t, err)
	}
	all, pages := storetest.Pages(t, func(after int64) ([]admin.Action, bool, error) {
		return db.Admin.Actions(t.Context(), "", after, 2)
	}, func(a admin.Action) int64 { return a.ID })
	require.Equal(t, []int64{5, 4, 3, 2, 1}, store.Column(all, func(a admin.Action) int64 { return a.ID }))
	require.Equal(t, 3, pages)
}

func TestDefaultSMSIsSentAgainAfterReset(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	ctx := t.Context()
	d, err := db.Admin.AddDefault(ctx, "13800138000", "欢迎使用我们的服务", false, storetest.Tester)
	require.NoError(t, err)
	submit := func() tasks.Submitted { return db.MustSubmit(t, storetest.Submission(storetest.NoContent))[0] }
	require.Equal(t, "欢迎使用我们的服务", submit().Text)
	require.Equal(t, task.CodeDefaultSent, submit().Refused.Code)
	_, err = db.Admin.EditDefault(ctx, d.ID, storetest.Tester, func(x *admin.DefaultSMS) error { x.Sent = false; return nil })
	require.NoError(t, err)
	require.Equal(t, task.Pending, submit().State)
	_, err = db.Admin.EditDefault(ctx, d.ID, storetest.Tester, func(x *admin.DefaultSMS) error {
		x.Content = "changed"
		return task.Refuse(task.CodeConflict, "no")
	})
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	deleted, err := db.Admin.DeleteDefault(ctx, d.ID, storetest.Tester)
	require.NoError(t, err)
	require.Equal(t, "欢迎使用我们的服务", deleted.Content, "a refused edit changes nothing")
}

func TestBlockedWordAppliesImmediatelyInEveryForm(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	ctx := t.Context()
	db.MustSubmit(t, storetest.Submission()) // makes this process read the list while it is empty
	word, err := db.Admin.AddBlockedWord(ctx, "Hello", storetest.Tester)
	require.NoError(t, err)
	again, err := db.Admin.AddBlockedWord(ctx, "ＨＥＬＬＯ", storetest.Tester)
	require.NoError(t, err)
	require.Equal(t, word, again)
	require.Equal(t, task.CodeBlocked, db.MustSubmit(t, storetest.Submission())[0].Refused.Code)
	blocked, err := db.Admin.Blocked(ctx, "say hELLo")
	require.NoError(t, err)
	require.True(t, blocked)

	_, err = db.Admin.RemoveBlockedWord(ctx, word.ID, storetest.Tester)
	require.NoError(t, err)
	require.Nil(t, db.MustSubmit(t, storetest.Submission())[0].Refused)
	for _, bad := range []string{" \t", "\u3000", "\u200b\ufe0f", strings.Repeat("ﷺ", 100)} {
		_, err = db.Admin.AddBlockedWord(ctx, bad, storetest.Tester)
		require.Equal(t, task.CodeInvalid, task.CodeOf(err), "%q", bad)
	}
}

func TestLongOperatorNameIsTruncated(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	by := store.Operator{Name: strings.Repeat("名", 60), RequestID: "r", Reason: "why not"}
	x, err := db.Admin.AddTemplate(t.Context(), "n", "c", by)
	require.NoError(t, err)
	a := db.Actions(t, fmt.Sprintf("template/%d", x.ID))[0]
	require.Equal(t, strings.Repeat("名", 50), a.CallerName)
	require.Equal(t, "why not", a.Reason)
}
