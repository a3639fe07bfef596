package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

// newCaller makes a caller from the rest of its request, and acts as it.
func newCaller(s *server, name, rest string) *server {
	s.t.Helper()
	made := s.post("/api/v1/admin/callers", fmt.Sprintf(`{"name":%q,%s}`, name, rest))
	require.Equal(s.t, 200, made.status, made.text)
	as := *s
	as.user, as.password = name, made.data("token").(string)
	return &as
}

const sentBooking = subscriptions + "sent?business_type=course_booking&template_type=BOOKING_CONFIRM&receiver_user_id=9007199254740993&business_id="

func TestACallerUsesTheBusinessTypesItWasGranted(t *testing.T) {
	t.Parallel()
	s := serve(t)
	shop := newCaller(s, "shop", `"roles":["submitter"],"business_types":["course_booking"]`)
	hostile := newCaller(s, "hostile", `"roles":["submitter"],"business_types":["coupon"]`)

	refused := func(r reply) {
		t.Helper()
		require.Equal(t, 403, r.status, r.text)
		require.Equal(t, []string{"business_type"}, r.fields())
		require.Contains(t, r.text, "coupon", "it names what is granted")
	}
	for round, status := range []string{"not ordered", "pending", "sent"} {
		refused(hostile.post(subscriptions+"send", booking(1, "")))
		refused(hostile.post(subscriptions+"record", recording(1, "")))
		refused(hostile.get(sentBooking + "1"))
		refused(hostile.get(subscriptions + "logs?business_type=course_booking&business_id=1"))
		switch round {
		case 0:
			require.NotContains(t, orderMessage(shop, booking(1, "")).text, "skipped", "nobody took the key: %s", status)
		case 1:
			newWeChatSender(s).send(task.Report{Outcome: task.SentOK})
		}
	}
	require.Equal(t, true, shop.get(sentBooking+"1").data("sent"))
	require.Equal(t, 1, s.count(`select count(*) from subscribe_message_logs`))
	coupon := strings.Replace(booking(1, ""), "course_booking", "coupon", 1)
	require.NotContains(t, orderMessage(hostile, coupon).text, "skipped", "its own type is open to it")
}

func TestAGrantedCallerIsToldNothingOfAnothersMessage(t *testing.T) {
	t.Parallel()
	s := serve(t)
	grant := `"roles":["submitter"],"business_types":["course_booking"]`
	shop, hostile := newCaller(s, "shop", grant), newCaller(s, "hostile", grant)
	var told []string
	ask := func() {
		t.Helper()
		for _, r := range []reply{
			hostile.post(subscriptions+"send", booking(1, "")),
			hostile.post(subscriptions+"send", strings.Replace(booking(1, ""), "瑜伽课", "茶", 1)),
			hostile.post(subscriptions+"record", recording(1, "")),
			hostile.get(sentBooking + "1"),
		} {
			require.Equal(t, 403, r.status, r.text)
			require.Empty(t, r.header.Get("Location"))
			told = append(told, fmt.Sprint(r.body["error"], r.body["message"], r.body["fields"]))
		}
	}
	at := orderMessage(shop, booking(1, "")).header.Get("Location")
	ask() // it is pending
	newWeChatSender(s).send(task.Report{Outcome: task.SentFailed})
	ask() // it failed
	require.Equal(t, true, orderMessage(shop, booking(1, "")).data("again"))
	newWeChatSender(s).send(task.Report{Outcome: task.SentOK})
	ask() // it is sent
	require.Equal(t, 404, hostile.get(at).status)
	require.Equal(t, 404, hostile.post(at+"/status", `{"app_id":"app","claim_id":"1","send_status":2}`).status)
	for _, text := range told {
		require.Equal(t, told[0], text, "whatever became of the message")
	}
	require.Equal(t, "瑜伽课", shop.get(at).data("message_data").(map[string]any)["thing1"].(map[string]any)["value"])
	require.EqualValues(t, 1, shop.get(at).data("send_status"))
}

func TestACallerWithoutBusinessTypesLearnsNoOthersData(t *testing.T) {
	t.Parallel()
	s := serve(t)
	shop, other := s.caller("shop", "submitter"), s.caller("other", "submitter")
	at := orderMessage(shop, booking(1, "")).header.Get("Location")
	differs := strings.Replace(booking(1, ""), "瑜伽课", "茶", 1)
	require.Equal(t, true, orderMessage(shop, differs).data("data_differs"))
	skipped := orderMessage(other, differs)
	require.Equal(t, true, skipped.data("skipped"), "a user must not get it twice")
	require.Nil(t, skipped.data("data_differs"), "or the data could be guessed")
	require.Equal(t, false, other.get(sentBooking+"1").data("sent"))
	newWeChatSender(s).send(task.Report{Outcome: task.SentFailed})
	require.Equal(t, 403, other.post(subscriptions+"send", differs).status, "it replaces no data of another caller")
	require.Contains(t, shop.get(at).text, "瑜伽课")
	require.Equal(t, true, orderMessage(s, differs).data("again"), "an admin may")
}

func TestAdminsHaveNoBusinessTypes(t *testing.T) {
	t.Parallel()
	s := serve(t)
	const callers = "/api/v1/admin/callers"
	made := s.post(callers, `{"name":"boss","roles":["admin"],"business_types":["coupon"]}`)
	require.Equal(t, 400, made.status, made.text)
	require.Equal(t, []string{"business_types"}, made.fields())
	bad := s.post(callers, `{"name":"shop","roles":["submitter"],"business_types":[""," ","a","a"]}`)
	require.Equal(t, []string{"business_types[0]", "business_types[1]", "business_types[3]"}, bad.fields())
	shop := s.post(callers, `{"name":"shop","roles":["submitter"],"business_types":["coupon"]}`)
	at := fmt.Sprintf("%s/%v", callers, shop.data("id"))
	promoted := s.do("PUT", at, `{"roles":["admin"]}`)
	require.Equal(t, 400, promoted.status, promoted.text)
	require.Equal(t, []string{"business_types"}, promoted.fields())
	require.Equal(t, []any{"coupon"}, s.get(at).data("business_types"), "nothing was changed")
	require.Equal(t, []any{}, s.do("PUT", at, `{"roles":["admin"],"business_types":[]}`).data("business_types"))
}
