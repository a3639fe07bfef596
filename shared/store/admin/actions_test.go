package admin_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/store/admin"
	"github.com/sendonce/sendonce/shared/store/callers"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

func TestTemplateChangesAreAudited(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	ctx := t.Context()
	created, err := db.Admin.AddTemplate(ctx, "验证码模板", "您的验证码是{code}", storetest.Tester)
	require.NoError(t, err)
	require.True(t, created.Active)
	require.WithinDuration(t, time.Now(), created.CreatedAt, time.Minute)

	edited, err := db.Admin.EditTemplate(ctx, created.ID, storetest.Tester, func(x *admin.Template) { x.Content = "code {code}" })
	require.NoError(t, err)
	require.Equal(t, "code {code}", edited.Content)
	for _, active := range []bool{false, false, true} {
		edited, err = db.Admin.EditTemplate(ctx, created.ID, storetest.Tester, func(x *admin.Template) { x.Active = active })
		require.NoError(t, err)
		require.Equal(t, active, edited.Active)
	}
	found, err := db.Admin.Template(ctx, created.ID)
	require.NoError(t, err)
	require.Equal(t, edited, found)

	log := db.Actions(t, fmt.Sprintf("template/%d", created.ID))
	require.Equal(t, []string{"template.create", "template.update", "template.deactivate", "template.activate"}, storetest.ActionNames(log), "an edit that changes nothing has no entry")
	require.Nil(t, log[0].Before)
	require.JSONEq(t, `{"template_name":"验证码模板","template_content":"您的验证码是{code}","is_active":true}`, string(log[1].Before))
	require.JSONEq(t, `{"template_name":"验证码模板","template_content":"code {code}","is_active":true}`, string(log[1].After))
	require.Equal(t, int64(7), log[1].CallerID)
	require.Equal(t, "tester", log[1].CallerName)
	require.Equal(t, "req-1", log[1].RequestID)

	_, err = db.Admin.EditTemplate(ctx, created.ID+1, storetest.Tester, func(*admin.Template) {})
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	_, err = db.Admin.Template(ctx, created.ID+1)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
}

func TestListsArePagedByID(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	ctx := t.Context()
	for range 5 {
		_, err := db.Admin.AddTemplate(ctx, "name", "content", storetest.Tester)
		require.NoError(t, err)
	}
	_, err := db.Admin.EditTemplate(ctx, 2, storetest.Tester, func(x *admin.Template) { x.Active = false })
	require.NoError(t, err)

	var listed []int32
	for after, more := int64(0), true; more; {
		var page []admin.Template
		page, more, err = db.Admin.Templates(ctx, nil, after, 2)
		require.NoError(t, err)
		for _, x := range page {
			listed, after = append(listed, x.ID), int64(x.ID)
		}
	}
	require.Equal(t, []int32{1, 2, 3, 4, 5}, listed)
	page, more, err := db.Admin.Templates(ctx, new(false), 0, 1)
	require.NoError(t, err)
	require.False(t, more, "a full last page has no next page")
	require.Equal(t, int32(2), page[0].ID)

	newest, more, err := db.Admin.Actions(ctx, "", 0, 2)
	require.NoError(t, err)
	require.True(t, more)
	require.Equal(t, []string{"template.deactivate", "template.create"}, storetest.ActionNames(newest))
	rest, more, err := db.Admin.Actions(ctx, "", newest[1].ID, 4)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, rest, 4)
	require.Less(t, rest[0].ID, newest[1].ID)
}

func TestDefaultIsUniquePerPhoneNumber(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	ctx := t.Context()
	d, err := db.Admin.AddDefault(ctx, "13800138000", "欢迎使用我们的服务", false, storetest.Tester)
	require.NoError(t, err)
	_, err = db.Admin.AddDefault(ctx, "13800138000", "other", false, storetest.Tester)
	require.Equal(t, task.CodeDefaultExists, task.CodeOf(err))

	submit := func() tasks.Submitted { return db.MustSubmit(t, storetest.Submission(storetest.NoContent))[0] }
	require.Equal(t, "欢迎使用我们的服务", submit().Text)
	require.Equal(t, task.CodeDefaultSent, submit().Refused.Code)
	page, _, err := db.Admin.Defaults(ctx, "13800138000", new(true), 0, 10)
	require.NoError(t, err)
	require.Len(t, page, 1)

	_, err = db.Admin.EditDefault(ctx, d.ID, storetest.Tester, func(x *admin.DefaultSMS) error { x.Sent = false; return nil })
	require.NoError(t, err)
	require.Equal(t, task.Pending, submit().State, "after the reset the default is sent once more")
	_, err = db.Admin.EditDefault(ctx, d.ID, storetest.Tester, func(x *admin.DefaultSMS) error {
		x.Content = "changed"
		return task.Refuse(task.CodeConflict, "no")
	})
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	deleted, err := db.Admin.DeleteDefault(ctx, d.ID, storetest.Tester)
	require.NoError(t, err)
	require.Equal(t, "欢迎使用我们的服务", deleted.Content, "a refused edit changes nothing")
	_, err = db.Admin.DeleteDefault(ctx, d.ID, storetest.Tester)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))

	log := db.Actions(t, fmt.Sprintf("default/%d", d.ID))
	require.Equal(t, []string{"default.create", "default.reset", "default.delete"}, storetest.ActionNames(log))
	require.Nil(t, log[2].After)
}

func TestBlockedWordAppliesAtOnceInEveryForm(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	ctx := t.Context()
	db.MustSubmit(t, storetest.Submission()) // reads the list, which is empty
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
	_, err = db.Admin.RemoveBlockedWord(ctx, word.ID, storetest.Tester)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	require.Equal(t, []string{"blocked.add", "blocked.remove"}, storetest.ActionNames(db.Actions(t, fmt.Sprintf("blocked_word/%d", word.ID))))

	for _, bad := range []string{" \t", "\u3000", "\u200b\ufe0f", strings.Repeat("ﷺ", 100)} {
		_, err = db.Admin.AddBlockedWord(ctx, bad, storetest.Tester)
		require.Equal(t, task.CodeInvalid, task.CodeOf(err), "%q", bad)
	}
}

func TestCallerIsRotatedAndRevokedWithoutShowingToken(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	ctx := t.Context()
	first, second := sha256.Sum256([]byte("first")), sha256.Sum256([]byte("second"))
	c, err := db.Callers.Add(ctx, "shop", first[:], callers.Grants{Roles: []string{"submitter"}}, storetest.BuiltIn)
	require.NoError(t, err)
	require.Empty(t, c.Queues)
	_, err = db.Callers.Add(ctx, "shop", second[:], callers.Grants{Roles: []string{"sender"}}, storetest.BuiltIn)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))

	c, _, err = db.Callers.Update(ctx, c.ID, callers.Grants{Queues: []string{"bulk"}}, storetest.BuiltIn)
	require.NoError(t, err)
	require.Equal(t, []string{"submitter"}, c.Roles)
	require.Equal(t, []string{"bulk"}, c.Queues)
	_, err = db.Callers.RotateToken(ctx, c.ID, second[:], storetest.BuiltIn)
	require.NoError(t, err)
	login, err := db.Callers.ByName(ctx, "shop", false)
	require.NoError(t, err)
	require.True(t, login.MatchesToken(second))

	for range 2 {
		c, _, err = db.Callers.Revoke(ctx, c.ID, storetest.BuiltIn)
		require.NoError(t, err)
		require.NotNil(t, c.RevokedAt)
	}
	_, err = db.Callers.RotateToken(ctx, c.ID, first[:], storetest.BuiltIn)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	_, _, err = db.Callers.Revoke(ctx, c.ID+1, storetest.BuiltIn)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	page, _, err := db.Callers.List(ctx, nil, 0, 10)
	require.NoError(t, err)
	require.Equal(t, []callers.StoredCaller{c}, page)

	log := db.Actions(t, fmt.Sprintf("caller/%d", c.ID))
	require.Equal(t, []string{"caller.create", "caller.update", "caller.rotate", "caller.revoke"}, storetest.ActionNames(log))
	for _, a := range log {
		require.NotContains(t, string(a.Before)+string(a.After), "token", "audit entries have no secrets")
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
