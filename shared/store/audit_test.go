package store

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

func TestATemplateIsKeptWithEveryChangeByHand(t *testing.T) {
	t.Parallel()
	db := open(t)
	ctx := t.Context()
	made, err := db.AddTemplate(ctx, "验证码模板", "您的验证码是{code}", tester)
	require.NoError(t, err)
	require.True(t, made.Active)
	require.WithinDuration(t, time.Now(), made.CreatedAt, time.Minute)

	edited, err := db.EditTemplate(ctx, made.ID, tester, func(x *Template) { x.Content = "code {code}" })
	require.NoError(t, err)
	require.Equal(t, "code {code}", edited.Content)
	for _, active := range []bool{false, false, true} {
		edited, err = db.EditTemplate(ctx, made.ID, tester, func(x *Template) { x.Active = active })
		require.NoError(t, err)
		require.Equal(t, active, edited.Active)
	}
	found, err := db.Template(ctx, made.ID)
	require.NoError(t, err)
	require.Equal(t, edited, found)

	log := db.actions(t, fmt.Sprintf("template/%d", made.ID))
	require.Equal(t, []string{"template.create", "template.update", "template.deactivate", "template.activate"}, words(log), "the edit that changed nothing is not told")
	require.Nil(t, log[0].Before)
	require.JSONEq(t, `{"template_name":"验证码模板","template_content":"您的验证码是{code}","is_active":true}`, string(log[1].Before))
	require.JSONEq(t, `{"template_name":"验证码模板","template_content":"code {code}","is_active":true}`, string(log[1].After))
	require.Equal(t, int64(7), log[1].CallerID)
	require.Equal(t, "tester", log[1].CallerName)
	require.Equal(t, "req-1", log[1].RequestID)

	_, err = db.EditTemplate(ctx, made.ID+1, tester, func(*Template) {})
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	_, err = db.Template(ctx, made.ID+1)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
}

func TestListsArePagedByID(t *testing.T) {
	t.Parallel()
	db := open(t)
	ctx := t.Context()
	for range 5 {
		_, err := db.AddTemplate(ctx, "name", "content", tester)
		require.NoError(t, err)
	}
	_, err := db.EditTemplate(ctx, 2, tester, func(x *Template) { x.Active = false })
	require.NoError(t, err)

	var seen []int32
	for after, more := int64(0), true; more; {
		var page []Template
		page, more, err = db.Templates(ctx, nil, after, 2)
		require.NoError(t, err)
		for _, x := range page {
			seen = append(seen, x.ID)
			after = int64(x.ID)
		}
	}
	require.Equal(t, []int32{1, 2, 3, 4, 5}, seen)
	inactive := false
	page, more, err := db.Templates(ctx, &inactive, 0, 1)
	require.NoError(t, err)
	require.False(t, more, "a full last page has no next")
	require.Equal(t, int32(2), page[0].ID)

	newest, more, err := db.Actions(ctx, "", 0, 2)
	require.NoError(t, err)
	require.True(t, more)
	require.Equal(t, []string{"template.deactivate", "template.create"}, words(newest))
	rest, more, err := db.Actions(ctx, "", newest[1].ID, 4)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, rest, 4)
	require.Less(t, rest[0].ID, newest[1].ID)
}

func TestAPhoneNumberHasOneDefaultThatCanBeResetAndDeleted(t *testing.T) {
	t.Parallel()
	db := open(t)
	ctx := t.Context()
	d, err := db.AddDefault(ctx, "13800138000", "欢迎使用我们的服务", false, tester)
	require.NoError(t, err)
	_, err = db.AddDefault(ctx, "13800138000", "other", false, tester)
	require.Equal(t, task.CodeDefaultExists, task.CodeOf(err))

	empty := func(s *Submission) { s.Draft.Content = "" }
	require.Equal(t, "欢迎使用我们的服务", db.mustSubmit(t, message(empty))[0].Text)
	require.Equal(t, task.CodeDefaultSent, db.mustSubmit(t, message(empty))[0].Refused.Code)
	sent := true
	page, _, err := db.Defaults(ctx, "13800138000", &sent, 0, 10)
	require.NoError(t, err)
	require.Len(t, page, 1)

	_, err = db.EditDefault(ctx, d.ID, tester, func(x *DefaultSMS) error { x.Sent = false; return nil })
	require.NoError(t, err)
	require.Equal(t, task.Pending, db.mustSubmit(t, message(empty))[0].State, "after the reset it is sent once more")
	_, err = db.EditDefault(ctx, d.ID, tester, func(x *DefaultSMS) error {
		x.Content = "changed"
		return task.Refuse(task.CodeConflict, "no")
	})
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	gone, err := db.DeleteDefault(ctx, d.ID, tester)
	require.NoError(t, err)
	require.Equal(t, "欢迎使用我们的服务", gone.Content, "a refused edit changes nothing")
	_, err = db.DeleteDefault(ctx, d.ID, tester)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))

	log := db.actions(t, fmt.Sprintf("default/%d", d.ID))
	require.Equal(t, []string{"default.create", "default.reset", "default.delete"}, words(log))
	require.Nil(t, log[2].After)
}

func TestABlockedWordCountsAtOnceAndInEveryFormOfIt(t *testing.T) {
	t.Parallel()
	db := open(t)
	ctx := t.Context()
	db.mustSubmit(t, message()) // the list is read, and empty
	word, err := db.AddBlockedWord(ctx, "Hello", tester)
	require.NoError(t, err)
	again, err := db.AddBlockedWord(ctx, "ＨＥＬＬＯ", tester)
	require.NoError(t, err)
	require.Equal(t, word, again)
	require.Equal(t, task.CodeBlocked, db.mustSubmit(t, message())[0].Refused.Code)
	blocked, err := db.Blocked(ctx, "say hELLo")
	require.NoError(t, err)
	require.True(t, blocked)

	_, err = db.RemoveBlockedWord(ctx, word.ID, tester)
	require.NoError(t, err)
	require.Nil(t, db.mustSubmit(t, message())[0].Refused)
	_, err = db.RemoveBlockedWord(ctx, word.ID, tester)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	require.Equal(t, []string{"blocked.add", "blocked.remove"}, words(db.actions(t, fmt.Sprintf("blocked_word/%d", word.ID))))

	for _, bad := range []string{" \t", "\u3000", "\u200b\ufe0f", strings.Repeat("ﷺ", 100)} {
		_, err = db.AddBlockedWord(ctx, bad, tester)
		require.Equal(t, task.CodeInvalid, task.CodeOf(err), "%q", bad)
	}
}

func TestACallerIsRotatedAndRevokedAndItsTokenNeverTold(t *testing.T) {
	t.Parallel()
	db := open(t)
	ctx := t.Context()
	first, second := sha256.Sum256([]byte("first")), sha256.Sum256([]byte("second"))
	c, err := db.AddCaller(ctx, "shop", first[:], Grants{Roles: []string{"submitter"}}, builtIn)
	require.NoError(t, err)
	require.Empty(t, c.Queues)
	_, err = db.AddCaller(ctx, "shop", second[:], Grants{Roles: []string{"sender"}}, builtIn)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))

	c, _, err = db.UpdateCaller(ctx, c.ID, Grants{Queues: []string{"bulk"}}, builtIn)
	require.NoError(t, err)
	require.Equal(t, []string{"submitter"}, c.Roles)
	require.Equal(t, []string{"bulk"}, c.Queues)
	_, err = db.RotateCaller(ctx, c.ID, second[:], builtIn)
	require.NoError(t, err)
	login, err := db.CallerByName(ctx, "shop", false)
	require.NoError(t, err)
	require.True(t, login.Knows(second))

	for range 2 {
		c, _, err = db.RevokeCaller(ctx, c.ID, builtIn)
		require.NoError(t, err)
		require.NotNil(t, c.RevokedAt)
	}
	_, err = db.RotateCaller(ctx, c.ID, first[:], builtIn)
	require.Equal(t, task.CodeConflict, task.CodeOf(err))
	_, _, err = db.RevokeCaller(ctx, c.ID+1, builtIn)
	require.Equal(t, task.CodeNotFound, task.CodeOf(err))
	page, _, err := db.Callers(ctx, nil, 0, 10)
	require.NoError(t, err)
	require.Equal(t, []StoredCaller{c}, page)

	log := db.actions(t, fmt.Sprintf("caller/%d", c.ID))
	require.Equal(t, []string{"caller.create", "caller.update", "caller.rotate", "caller.revoke"}, words(log))
	for _, a := range log {
		require.NotContains(t, string(a.Before)+string(a.After), "token", "a record holds no secret")
	}
}

func TestAnOperatorOfAnyNameIsRecorded(t *testing.T) {
	t.Parallel()
	db := open(t)
	by := Operator{Name: strings.Repeat("名", 60), RequestID: "r", Reason: "why not"}
	x, err := db.AddTemplate(t.Context(), "n", "c", by)
	require.NoError(t, err)
	a := db.actions(t, fmt.Sprintf("template/%d", x.ID))[0]
	require.Equal(t, strings.Repeat("名", 50), a.CallerName)
	require.Equal(t, "why not", a.Reason)
}
