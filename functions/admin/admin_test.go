package admin_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/store"
	"github.com/sendonce/sendonce/shared/task"
)

func TestATemplateAsTheSeedShowsItIsStoredAndChanged(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	made := must[api.TemplateResponse](o, "POST", "template", `{"template_name": "验证码模板", "template_content": "您的验证码是{code}，用户{name}"}`)
	require.Equal(t, "验证码模板", made.TemplateName)
	require.Equal(t, []string{"code", "name"}, made.Params)
	require.True(t, made.IsActive)
	require.Equal(t, time.UTC, made.CreatedAt.Location())
	at := fmt.Sprintf("template/%d", made.ID)
	require.Equal(t, made, must[api.TemplateResponse](o, "GET", at, ""))

	changed := must[api.TemplateResponse](o, "PUT", at, `{"template_content": "plain"}`)
	require.Equal(t, "验证码模板", changed.TemplateName)
	require.Empty(t, changed.Params)
	require.NotNil(t, changed.Params)
	require.False(t, must[api.TemplateResponse](o, "POST", at+"/deactivate", "").IsActive)
	require.Empty(t, must[api.Page[api.TemplateResponse]](o, "GET", "template?active=true", "").Items)
	require.True(t, must[api.TemplateResponse](o, "POST", at+"/activate", "").IsActive)
	require.Equal(t, []string{"template.activate", "template.deactivate", "template.update", "template.create"}, o.actions(at))

	must[api.TemplateResponse](o, "POST", "template", `{"template_name":"second","template_content":"x"}`)
	page := must[api.Page[api.TemplateResponse]](o, "GET", "template?limit=1", "")
	require.Len(t, page.Items, 1)
	page = must[api.Page[api.TemplateResponse]](o, "GET", "template?limit=1&after="+page.NextAfter, "")
	require.Equal(t, "second", page.Items[0].TemplateName)
	require.Empty(t, page.NextAfter)
}

func TestAPreviewJudgesTheTextAndWritesNothing(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	made := must[api.TemplateResponse](o, "POST", "template", `{"template_name":"t","template_content":"您的验证码是{code}，用户{name}"}`)
	at := fmt.Sprintf("template/%d/preview", made.ID)
	require.Equal(t, api.PreviewResponse{
		FinalContent: "您的验证码是123456，用户张三", Segments: 1, Encoding: "UCS-2", Length: 17,
		MissingParams: []string{}, UnusedParams: []string{"x"}, Sendable: true,
	}, must[api.PreviewResponse](o, "POST", at, `{"content":"code=123456&name=%E5%BC%A0%E4%B8%89&x=1"}`))

	short := must[api.PreviewResponse](o, "POST", at, `{"params":{"code":123456}}`)
	require.Equal(t, []string{"name"}, short.MissingParams)
	require.False(t, short.Sendable)
	require.Contains(t, short.Problem, "params.name")
	long := must[api.PreviewResponse](o, "POST", at, `{"params":{"code":"`+strings.Repeat("1", 200)+`","name":"a"}}`)
	require.False(t, long.Sendable)

	draft := must[api.PreviewResponse](o, "POST", "template/preview", `{"template_content":"hi {who}","params":{"who":true}}`)
	require.Equal(t, "hi true", draft.FinalContent)
	require.True(t, draft.Sendable)
	must[api.BlockedWordResponse](o, "POST", "blocked-words", `{"word":"HI"}`)
	require.False(t, must[api.PreviewResponse](o, "POST", "template/preview", `{"template_content":"hi"}`).Sendable)

	o.refused(400, "invalid_request", []string{"params", "template_content"}, "POST", at, `{"content":"a=b","params":{},"template_content":"x"}`)
	o.refused(400, "invalid_request", []string{"content", "template_content"}, "POST", "template/preview", `{"content":"a=%zz"}`)
	o.refused(400, "invalid_request", []string{"params.a", "template_content"}, "POST", "template/preview", `{"params":{"a":[]}}`)
	o.refused(404, "not_found", nil, "POST", "template/99/preview", `{}`)
	require.Len(t, must[api.Page[api.ActionResponse]](o, "GET", "actions", "").Items, 2, "previews left no trace")
}

func TestADefaultAsTheSeedShowsItIsStoredChangedResetAndDeleted(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	body := `{"phone_number": "13800138000", "content": "欢迎使用我们的服务", "use_template": false}`
	made := must[api.DefaultSMSResponse](o, "POST", "default-sms", body)
	require.Equal(t, "欢迎使用我们的服务", made.Content)
	require.False(t, made.IsSent)
	o.refused(409, "default_exists", nil, "POST", "default-sms", body)
	at := fmt.Sprintf("default-sms/%d", made.ID)
	require.Equal(t, made, must[api.DefaultSMSResponse](o, "GET", at, ""))

	o.submit(func(s *store.Submission) { s.Draft = task.Draft{} })
	require.Len(t, must[api.Page[api.DefaultSMSResponse]](o, "GET", "default-sms?is_sent=true&phone_number=13800138000", "").Items, 1)
	require.False(t, must[api.DefaultSMSResponse](o, "POST", at+"/reset", "").IsSent)
	o.refused(400, "invalid_request", []string{"content"}, "PUT", at, `{"use_template":true,"content":"code=%"}`)
	require.True(t, must[api.DefaultSMSResponse](o, "PUT", at, `{"use_template":true,"content":""}`).UseTemplate)
	o.refused(400, "invalid_request", []string{"content"}, "PUT", at, `{"use_template":false}`)
	require.Equal(t, made.ID, must[api.DefaultSMSResponse](o, "DELETE", at, "").ID)
	o.refused(404, "not_found", nil, "GET", at, "")
	o.refused(404, "not_found", nil, "DELETE", at, "")
	require.Equal(t, []string{"default.delete", "default.update", "default.reset", "default.create"}, o.actions(fmt.Sprintf("default/%d", made.ID)))

	plus := must[api.DefaultSMSResponse](o, "POST", "default-sms", `{"phone_number":"+8613800138000","content":"x"}`)
	require.Equal(t, plus.ID, must[api.Page[api.DefaultSMSResponse]](o, "GET", "default-sms?phone_number=%2B8613800138000", "").Items[0].ID)
	r := o.call("GET", "default-sms?phone_number=+8613800138000", "")
	require.Equal(t, 400, r.Code)
	require.Contains(t, r.Fields[0].Message, "%2B")
}

func TestStatisticsHaveTheSeedsKeys(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	require.JSONEq(t, `{"pending_new_tasks":0,"pending_retry_tasks":0,"processing_tasks":0,"failed_tasks":0,"scheduled_tasks":0,
		"held_tasks":0,"succeeded_tasks":0,"oldest_pending_seconds":null,"queues":[],
		"subscribe":{"pending_new_tasks":0,"pending_retry_tasks":0,"processing_tasks":0,"failed_tasks":0,"scheduled_tasks":0,
		"held_tasks":0,"succeeded_tasks":0,"oldest_pending_seconds":null,"queues":[]}}`, string(o.call("GET", "statistics", "").Data))
	for range 4 {
		o.submit(nil)
	}
	o.claimAndReport(task.SentOK)
	o.claimAndReport(task.SentFailed)
	o.claim()
	s := must[api.StatisticsResponse](o, "GET", "statistics", "")
	require.Equal(t, []int64{1, 1, 1, 1}, []int64{s.SucceededTasks, s.FailedTasks, s.ProcessingTasks, s.PendingNewTasks})
	require.NotNil(t, s.OldestPendingSeconds)
	require.Equal(t, "default", s.Queues[0].Queue)
	require.Equal(t, int64(1), s.Queues[0].PendingNewTasks)
}

func TestABlockedWordIsListedAndRemoved(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	w := must[api.BlockedWordResponse](o, "POST", "blocked-words", `{"word":"赌博"}`)
	require.Equal(t, w, must[api.BlockedWordResponse](o, "POST", "blocked-words", `{"word":"赌博"}`))
	require.Equal(t, []api.BlockedWordResponse{w}, must[api.Page[api.BlockedWordResponse]](o, "GET", "blocked-words", "").Items)
	at := fmt.Sprintf("blocked-words/%d", w.ID)
	require.Equal(t, "赌博", must[api.BlockedWordResponse](o, "DELETE", at, "").Word)
	o.refused(404, "not_found", nil, "DELETE", at, "")
	o.refused(400, "invalid_request", []string{"word"}, "POST", "blocked-words", `{"word":"\u3000"}`)
	require.Equal(t, []string{"blocked.remove", "blocked.add"}, o.actions(fmt.Sprintf("blocked_word/%d", w.ID)))
}

func TestACallersTokenIsShownOnceAndLetsItIn(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	made := must[api.CallerResponse](o, "POST", "callers", `{"name":"ops.2","roles":["admin"],"queues":[]}`)
	require.Len(t, made.Token, 43, "256 bits")
	require.Equal(t, 200, o.callAs("ops.2", made.Token, "GET", "statistics", "").Code)
	require.Equal(t, 401, o.callAs("ops.2", made.Token+"x", "GET", "statistics", "").Code)
	at := fmt.Sprintf("callers/%d", made.ID)
	shown := o.call("GET", at, "")
	require.NotContains(t, string(shown.Data), "token")
	require.NotContains(t, string(o.call("GET", "callers", "").Data), "token")

	changed := must[api.CallerResponse](o, "PUT", at, `{"roles":["submitter","sender"],"queues":["bulk"]}`)
	require.Equal(t, []string{"submitter", "sender"}, changed.Roles)
	require.Equal(t, []string{"bulk"}, changed.Queues)
	require.Empty(t, must[api.CallerResponse](o, "PUT", at, `{"queues":[]}`).Queues, "an empty list stands for all")
	rotated := must[api.CallerResponse](o, "POST", at+"/rotate", "")
	require.NotEqual(t, made.Token, rotated.Token)
	require.Len(t, rotated.Token, 43)
	require.NotNil(t, must[api.CallerResponse](o, "POST", at+"/revoke", "").RevokedAt)
	o.refused(409, "conflict", nil, "POST", at+"/rotate", "")
	require.Equal(t, []string{"caller.revoke", "caller.rotate", "caller.update", "caller.update", "caller.create"}, o.actions(fmt.Sprintf("caller/%d", made.ID)))
	require.NotContains(t, string(o.call("GET", "actions", "").Data), made.Token)

	o.refused(409, "conflict", nil, "POST", "callers", `{"name":"ops.2","roles":["admin"]}`)
	o.refused(409, "conflict", nil, "POST", "callers", `{"name":"admin","roles":["admin"]}`)
	o.refused(400, "invalid_request", []string{"name", "roles[1]", "roles[2]", "queues[0]"}, "POST", "callers", `{"name":"a b","roles":["admin","boss","admin"],"queues":[""]}`)
	o.refused(400, "invalid_request", []string{"name", "roles"}, "POST", "callers", `{}`)
	o.refused(400, "invalid_request", []string{"roles"}, "PUT", at, `{"roles":[]}`)
}

func TestACallerIsGrantedSubjectsByPatterns(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	made := must[api.CallerResponse](o, "POST", "callers", `{"name":"points","roles":["receiver"],"receives":["msg.orders.>","msg.*.paid"]}`)
	require.Equal(t, []string{"msg.orders.>", "msg.*.paid"}, made.Receives)
	at := fmt.Sprintf("callers/%d", made.ID)
	require.Equal(t, made.Receives, must[api.CallerResponse](o, "PUT", at, `{"roles":["receiver","submitter"]}`).Receives, "what is left out stays")
	require.Equal(t, []string{"bills.sent"}, must[api.CallerResponse](o, "PUT", at, `{"receives":["bills.sent"]}`).Receives)
	require.Equal(t, []string{"bills.sent"}, must[api.CallerResponse](o, "GET", at, "").Receives)
	require.Contains(t, string(o.call("GET", "actions?subject="+strings.ReplaceAll(at, "callers", "caller"), "").Data), `"receives":["bills.sent"]`)
	require.Empty(t, must[api.CallerResponse](o, "PUT", at, `{"receives":[]}`).Receives, "an empty list stands for none")
	require.Contains(t, string(o.call("GET", at, "").Data), `"receives":[]`)

	o.refused(400, "invalid_request", []string{"receives[1]", "receives[2]"}, "PUT", at, `{"receives":["a","a.>.b","a"]}`)
	o.refused(400, "invalid_request", []string{"receives[0]"}, "POST", "callers", `{"name":"p","roles":["receiver"],"receives":[""]}`)
	var many []string
	for i := range 101 {
		many = append(many, fmt.Sprintf(`"a%d"`, i))
	}
	o.refused(400, "invalid_request", []string{"receives"}, "PUT", at, `{"receives":[`+strings.Join(many, ",")+`]}`)
}

func TestOnlyAnAdminIsLetIn(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	made := must[api.CallerResponse](o, "POST", "callers", `{"name":"app","roles":["submitter","sender","receiver","trigger"]}`)
	for _, path := range []string{"template", "default-sms", "statistics", "tasks", "blocked-words", "callers", "actions", "dead-letters"} {
		require.Equal(t, 403, o.callAs("app", made.Token, "GET", path, "").Code, path)
		require.Equal(t, 401, o.callAs("app", "guess", "GET", path, "").Code, path)
	}
}

func TestIDsThatCannotExistAreNotFound(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	for _, id := range []string{"0", "-1", "007", "+1", "1.0", "x", "2147483648", "9223372036854775808", "%00", "%27%20or%201=1", "1e3"} {
		o.refused(404, "not_found", nil, "GET", "template/"+id, "")
		o.refused(404, "not_found", nil, "POST", "template/"+id+"/activate", "")
		o.refused(404, "not_found", nil, "PUT", "default-sms/"+id, `{"content":"x"}`)
		o.refused(404, "not_found", nil, "DELETE", "blocked-words/"+id, "")
		o.refused(404, "not_found", nil, "POST", "callers/"+id+"/revoke", "")
		o.refused(404, "not_found", nil, "POST", "dead-letters/"+id+"/dismiss", `{"reason":"x"}`)
		o.refused(404, "not_found", nil, "POST", "tasks/"+id+"/retry", "")
		o.refused(404, "not_found", nil, "GET", "tasks/"+id, "")
	}
}

func TestNoTextOrNumberBreaksAField(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	routes := map[string]map[string]string{ // route -> field -> the rest of a good body
		"template":         {"template_name": `"template_content":"c"`, "template_content": `"template_name":"n"`},
		"template/preview": {"template_content": `"content":""`, "content": `"template_content":"c"`},
		"default-sms":      {"content": `"phone_number":"13900000001"`, "phone_number": `"content":"x"`},
		"blocked-words":    {"word": ""},
		"callers":          {"name": `"roles":["sender"]`},
	}
	texts := map[string]bool{ // text -> whether some field may take it
		`""`: false, `"\u0000"`: false, `"a\u0000b"`: false, `"\ud800"`: false, `9223372036854775808`: false, `[]`: false, `{}`: false, `true`: false,
		`"` + strings.Repeat("字", 201) + `"`: false, `"` + strings.Repeat("😀", 200) + `"`: true, `"'; drop table tasks; --"`: true, `"😀"`: true, `"\u202e"`: true,
	}
	for route, fields := range routes {
		for field, rest := range fields {
			for text, taken := range texts {
				body := "{" + strings.Trim(fmt.Sprintf(`%q:%s,%s`, field, text, rest), ",") + "}"
				r := o.call("POST", route, body)
				switch {
				case r.Code == 400:
					require.Contains(t, strings.Join(r.fields(), " "), field, body)
				case route == "template/preview" && field == "content":
					require.Equal(t, 200, r.Code, body)
				default:
					require.True(t, taken, "%s took %s", route, body)
					require.Contains(t, []int{200, 409}, r.Code, "%s %s: %s", route, body, r.Message)
				}
			}
		}
	}
	for _, query := range []string{"template?after=9223372036854775808", "template?after=-1", "callers?limit=0", "blocked-words?limit=201", "actions?limit=9223372036854775808",
		"actions?subject=%00", "tasks?phone_number=%00", "tasks?source=%FF", "tasks?caller_id=9223372036854775808", "tasks?from=yesterday", "default-sms?is_sent=maybe", "statistics?x=1"} {
		require.Equal(t, 400, o.call("GET", query, "").Code, query)
	}
	for _, query := range []string{"tasks?source=%27%20or%201=1", "tasks?from=0001-01-01T00:00:00Z&to=9999-12-31T23:59:59Z", "template?after=9223372036854775807",
		"actions?after=9223372036854775807", "actions?subject=😀", "tasks?caller_id=9223372036854775807"} {
		require.Equal(t, 200, o.call("GET", query, "").Code, query)
	}
}
