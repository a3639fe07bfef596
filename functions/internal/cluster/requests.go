package cluster

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/storetest"
	"github.com/sendonce/sendonce/shared/store/subscribe"
	"github.com/sendonce/sendonce/shared/store/tasks"
	"github.com/sendonce/sendonce/shared/task"
)

// API paths. UnknownIDPath is the end of a path with an id that does not exist.
const (
	SMSPath       = "/api/v1/sms/"
	SubscribePath = "/api/v1/subscribe/"
	UnknownIDPath = "/018c24d2-2100-7a5e-9b1f-3c6d5e4f7a81"
)

// NewCaller creates a caller with one role and its queues (none = all), and returns its client.
func (s *Client) NewCaller(name, role string, queues ...string) *Client {
	s.T.Helper()
	list, err := json.Marshal(append([]string{}, queues...))
	require.NoError(s.T, err)
	return s.NewCallerWith(name, fmt.Sprintf(`"roles":[%q],"queues":%s`, role, list))
}

// NewCallerWith creates a caller with these JSON fields and returns its client.
func (s *Client) NewCallerWith(name, fields string) *Client {
	s.T.Helper()
	created := s.Post(AdminPath+"callers", fmt.Sprintf(`{"name":%q,%s}`, name, fields)).RequireOK()
	as := *s
	as.User, as.Password = name, created.Data("token").(string)
	return &as
}

// CallerPath returns the admin path of a caller.
func (s *Client) CallerPath(name string) string {
	s.T.Helper()
	return AdminPath + "callers/" + s.QueryText(`select id::text from callers where name = $1`, name)
}

// AuditedActions returns the actions of the audit entries of a subject, newest first.
func (s *Client) AuditedActions(subject string) []any {
	s.T.Helper()
	return s.Get(AdminPath + "actions?subject=" + url.QueryEscape(subject)).Values("action")
}

// SubmitTo submits a task to a queue and returns its id.
func (s *Client) SubmitTo(queue string) string {
	s.T.Helper()
	return s.Post(SMSPath+"send", fmt.Sprintf(`{"phone_number":"13800138000","content":"hi","queue":%q}`, queue)).RequireOK().Data("task_id").(string)
}

// KeyedBatch returns a batch of tasks with the idempotency keys k-<first> to k-<last>. more is JSON that each task has in addition.
func KeyedBatch(first, last int, more string) string {
	var items []string
	for key := first; key <= last; key++ {
		items = append(items, fmt.Sprintf(`{"phone_number":"13800138000","content":"hello","idempotency_key":"k-%d"%s}`, key, more))
	}
	return `{"items":[` + strings.Join(items, ",") + `]}`
}

// Codes returns the status of each item of a batch.
func (r Reply) Codes() (codes []int) {
	r.T.Helper()
	for _, item := range r.Items() {
		codes = append(codes, int(item["code"].(float64)))
	}
	return codes
}

// SendText sends a message to a user and returns the id of the message. key is its client_msg_id and its text.
func (s *Client) SendText(to, key string) string {
	s.T.Helper()
	return s.Post(MessagesPath, fmt.Sprintf(`{"client_msg_id":%q,"to":"user:%s","data":{"text":%q}}`, key, to, key)).RequireOK().Data("server_msg_id").(string)
}

// Booking returns the request for a subscribe message that confirms a booking, with more fields.
func Booking(id any, more string) string {
	if more != "" {
		more = "," + more
	}
	return fmt.Sprintf(`{"template_id":"tmpl","template_type":"BOOKING_CONFIRM","business_type":"course_booking","business_id":%v,
		"receiver_user_id":"9007199254740993","receiver_openid":"openid","message_data":{"thing1":{"value":"瑜伽课"}}%s}`, id, more)
}

// Recording returns a booking that the caller sends itself, as the app "app".
func Recording(id any, more string) string {
	return strings.Replace(Booking(id, more), "{", `{"app_id":"app",`, 1)
}

// Subscribe posts a request for a subscribe message, which must be accepted.
func (s *Client) Subscribe(body string) Reply {
	s.T.Helper()
	return s.Post(SubscribePath+"send", body).RequireOK()
}

// WeChatSender claims and reports the tasks of the queue wechat, in place of the function wechat. It calls no
// provider.
type WeChatSender struct {
	DB *storetest.DB
	t  *testing.T
}

// NewWeChatSender returns a sender on the database of s.
func (s *Client) NewWeChatSender() WeChatSender {
	s.T.Helper()
	return WeChatSender{storetest.OpenAt(s.T, s.Owner.Config().ConnString()), s.T}
}

// Send claims the only pending task, reports r for it, and returns what the function wechat would have sent.
func (w WeChatSender) Send(r task.Report) subscribe.Send {
	t := w.t
	t.Helper()
	claimed := w.DB.Claim(t, func(r *tasks.ClaimRequest) {
		r.Queue, r.AppID, r.Limit, r.MarksSending = task.WeChatQueue, "wechat", 2, true
	})
	require.Len(t, claimed, 1)
	id := claimed[0].ID
	sends, err := w.DB.Subscribe.BeginSends(t.Context(), []task.ID{id})
	require.NoError(t, err)
	r.TaskID, r.AppID, r.ClaimID = id, "wechat", claimed[0].ClaimID
	require.Equal(t, task.Applied, w.DB.MustReport(t, r).Verdict)
	return sends[id]
}

// ClaimOne claims one task of the default queue, and returns the ids of the task and of the claim.
func (s *Client) ClaimOne(app string) (id, claim string) {
	s.T.Helper()
	r := s.Get(SMSPath + "tasks/pending?limit=1&app_id=" + app)
	require.Len(s.T, r.RequireOK().List(), 1, r.Text)
	return r.List()[0]["task_id"].(string), r.List()[0]["claim_id"].(string)
}

// HoldChange makes every change of one kind, such as "update on message_live", wait until release is called. held waits until
// there is such a change.
func HoldChange(s *Client, change string) (held, release func()) {
	s.Exec(`create function wait_here() returns trigger language plpgsql as $$
		begin perform pg_advisory_xact_lock(42); return case tg_op when 'DELETE' then old else new end; end $$;
		create trigger wait_here before ` + change + ` for each row execute function wait_here()`)
	s.Exec(`select pg_advisory_lock(42)`)
	held = func() {
		s.T.Helper()
		Eventually(s.T, func() bool {
			return s.Count(`select count(*) from pg_locks where locktype = 'advisory' and not granted and `+inThisDatabase) > 0
		}, change)
	}
	return held, func() { s.Exec(`select pg_advisory_unlock(42)`) }
}

// RaiseTimeoutsOfFunctions sets the lock timeout and the statement timeout of functions that start later to a minute, so that a test does
// not fail on a slow machine.
func (s *Client) RaiseTimeoutsOfFunctions() {
	for _, limit := range []string{"lock_timeout", "statement_timeout"} {
		s.Exec(`do $$ begin execute format('alter role sendonce_hot in database %I set ` + limit + ` = %L', current_database(), '1min'); end $$`)
	}
}

// BlockSaving makes saves of messages wait until release is called. Messages can still be read. release also undoes what s.Exec
// has changed meanwhile: both use one transaction.
func (s *Client) BlockSaving() (release func()) {
	s.T.Helper()
	s.Exec(`begin; lock table messages in exclusive mode`)
	return func() { s.Exec(`rollback`) }
}

// inThisDatabase is a condition on pg_locks: the lock is in the current database.
const inThisDatabase = `database = (select oid from pg_database where datname = current_database())`

// ExhaustSends changes messages as if their last send had ended with this status, and no receiver had confirmed them.
func (s *Client) ExhaustSends(status message.Status, ids ...any) {
	for _, id := range ids {
		s.Exec(`update message_live set status = $1, send_no = remaining_sends, remaining_sends = 0, next_at = null where id = $2`, int16(status), id)
	}
}

// RequireClaimed requires that a waiting claim returns one task, the one with this id, within limit.
func RequireClaimed(t *testing.T, woken <-chan Reply, limit time.Duration, id string) {
	t.Helper()
	claimed := Within(t, limit, woken, "the response to the waiting claim").RequireOK().List()
	require.Len(t, claimed, 1)
	require.Equal(t, id, claimed[0]["task_id"])
}

// ScheduleInAnHour submits one task to each queue, to be sent in an hour.
func (s *Client) ScheduleInAnHour(queues ...string) {
	at := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for _, queue := range queues {
		s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"x","queue":"`+queue+`","send_at":"`+at+`"}`).RequireOK()
	}
}

// RunMaintenance calls sweep until all maintenance is done. While some is left, upkeep.begun_at is -infinity.
func (s *Client) RunMaintenance() {
	s.T.Helper()
	for more := 1; more > 0; more = s.Count(`select count(*) from upkeep where what = 'maintenance' and begun_at = '-infinity'`) {
		require.Equal(s.T, 204, s.Tick("sweep").Status)
	}
}
