package e2e

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/task"
)

func (s checkedClient) messages() {
	s.T.Helper()
	paid := `{"client_msg_id":"order-1","exchange_name":"orders","routing_key":"paid","type":"order.paid.v1","data":{"order":[1,null,2.0]},
		"sent_at":"2023-12-01T18:00:00+08:00","ack":"saved","confirm":true,"max_sends":2,"expected_receipts":2}`
	saved := s.post(200, cluster.MessagesPath, paid)
	id := saved.Data("server_msg_id").(string)
	require.Equal(s.T, "true", s.post(200, cluster.MessagesPath, paid).Header.Get("Idempotency-Replayed"))
	s.post(422, cluster.MessagesPath, `{"client_msg_id":"order-1","to":"orders.paid","data":1}`)
	s.post(400, cluster.MessagesPath, `{"ack":"accepted","to":"wake.relay","max_sends":21}`)
	word := s.post(200, cluster.AdminPath+"blocked-words", `{"word":"免费贷款"}`)
	s.post(400, cluster.MessagesPath, `{"client_msg_id":"blocked","to":"user:bob","data":{"text":["免费贷款"]}}`)
	s.call(200, "DELETE", fmt.Sprintf("%sblocked-words/%v", cluster.AdminPath, word.Data("id")), "")
	url := s.post(200, cluster.MessagesPath, `{"from":"ann","client_msg_id":"url","to":"orders.refunded","confirm":false,"data":"x"}`).Data("server_msg_id")
	s.post(200, cluster.MessagesPath, `{"client_msg_id":"user","to":"user:bob","data":0}`)
	s.post(200, cluster.MessagesPath, `{"client_msg_id":"to-url","to":"http://127.0.0.1:1/orders","data":0}`)
	sent := s.post(200, cluster.MessagesPath, `{"client_msg_id":"sent","to":"orders.paid","data":0}`).Data("server_msg_id")

	// A transaction that saves the same message is open.
	s.Exec("begin")
	s.Exec(`insert into messages (id, call_id, fingerprint, caller_id, sender, client_msg_id, kind, destination, type, data, confirm, max_sends, expected_receipts)
		values ($1, $1, $1, 0, 'admin', 'slow', 0, 'a', 'b', '1', true, 5, 1)`, task.ID(message.ID(0, "admin", "slow")))
	s.post(409, cluster.MessagesPath, `{"client_msg_id":"slow","to":"a","data":1}`)
	s.Exec("rollback")

	require.Equal(s.T, "2023-12-01T10:00:00Z", s.get(200, cluster.MessagesPath+"/"+id).Data("sent_at"))
	s.get(200, cluster.MessagesPath+"/by-key/order-1")
	s.get(200, cluster.MessagesPath+"/by-key/url?from=ann")
	s.get(404, cluster.MessagesPath+"/by-key/url")
	s.get(404, cluster.MessagesPath+cluster.UnknownIDPath)
	receiver, submitter := s.as(s.NewMessageReceiver("points", "msg.orders.>")), s.as(s.NewCaller("shop", "submitter"))
	submitter.post(403, cluster.MessagesPath, `{"from":"ann","client_msg_id":"k","to":"a","data":1}`)
	submitter.get(403, cluster.MessagesPath+"/by-key/k?from=ann")
	greedy := s.as(s.Client.NewCallerWith("greedy", `"roles":["submitter"],"max_waiting_messages":1,"max_waiting_bytes":10,"max_waiting_tasks":1,"best_priority":5`))
	greedy.post(200, cluster.MessagesPath, `{"client_msg_id":"one","to":"a","data":1}`)
	greedy.post(429, cluster.MessagesPath, `{"client_msg_id":"two","to":"a","data":1}`)
	greedy.post(403, "/api/v1/sms/send", `{"phone_number":"13800138000","content":"x","priority":4}`)
	greedy.post(200, "/api/v1/sms/send", `{"phone_number":"13800138000","content":"x"}`)
	greedy.post(429, "/api/v1/sms/send", `{"phone_number":"13800138000","content":"x"}`)
	greedy.post(200, "/api/v1/sms/send/batch", `{"items":[{"phone_number":"13800138000","content":"x"}]}`)
	greedy.post(429, "/api/v1/subscribe/send", cluster.Booking(9, ""))
	greedy.post(429, "/api/v1/subscribe/record", cluster.Recording(9, ""))
	receiver.post(503, cluster.MessagesPath+"/"+id+"/received", `{}`)
	s.Exec(`update message_live set status = 1 where id = $1`, id)
	receiver.post(204, cluster.MessagesPath+"/"+id+"/received", `{}`)
	receiver.post(204, cluster.MessagesPath+"/"+id+"/received", `{"consumer":"points"}`)
	receiver.post(403, cluster.MessagesPath+"/"+id+"/received", `{"consumer":"stock"}`)
	receiver.post(400, cluster.MessagesPath+"/"+id+"/received", `{"token":"`+strings.Repeat("x", 101)+`"}`)
	receiver.post(404, cluster.MessagesPath+cluster.UnknownIDPath+"/received", `{"token":"x"}`)
	s.post(404, cluster.MessagesPath+cluster.UnknownIDPath+"/received", `{"consumer":"stock"}`)
	s.post(204, cluster.MessagesPath+"/"+id+"/received", `{"consumer":"stock"}`)
	require.Equal(s.T, "received", s.get(200, cluster.MessagesPath+"/"+id).Data("state"))

	s.Client.ExhaustSends(message.Sending, url)
	s.Client.ExhaustSends(message.Sent, sent)
	s.get(200, cluster.MessagesPath+"/stuck?kind=sending&limit=1&older_than_seconds=0")
	require.Len(s.T, s.get(200, cluster.MessagesPath+"/stuck?kind=sent").Data("items"), 1)
	s.get(400, cluster.MessagesPath+"/stuck")
	s.post(200, cluster.MessagesPath+"/reveal", fmt.Sprintf(`{"ids":[%q,%q],"reason":"the customer asks"}`, id, cluster.UnknownIDPath[1:]))
	s.post(400, cluster.MessagesPath+"/reveal", `{"ids":[]}`)
	s.post(200, cluster.MessagesPath+"/redrive", `{"kind":"sending","dry_run":true}`)
	s.post(200, cluster.MessagesPath+"/redrive", fmt.Sprintf(`{"ids":[%q],"limit":1}`, url))
	s.post(400, cluster.MessagesPath+"/redrive", `{}`)
	s.post(400, cluster.MessagesPath+"/abandon", `{"kind":"sent"}`)
	s.post(200, cluster.MessagesPath+"/abandon", `{"kind":"sent","reason":"the points service is gone"}`)
	s.get(200, fmt.Sprintf("%s/%v", cluster.MessagesPath, sent))
	s.post(200, fmt.Sprintf("%s/%v/redrive", cluster.MessagesPath, sent), `{"reason":"the points service is back"}`)
	s.post(200, fmt.Sprintf("%s/%v/redrive", cluster.MessagesPath, sent), "")
	s.post(200, fmt.Sprintf("%s/%v/abandon", cluster.MessagesPath, sent), `{"reason":"the points service is gone"}`)
	s.post(409, cluster.MessagesPath+"/"+id+"/redrive", "")
	s.post(409, cluster.MessagesPath+"/"+id+"/abandon", `{"reason":"x"}`)
	s.post(404, cluster.MessagesPath+cluster.UnknownIDPath+"/redrive", "")
	s.post(404, cluster.MessagesPath+cluster.UnknownIDPath+"/abandon", `{"reason":"x"}`)
	s.post(400, cluster.MessagesPath+"/"+id+"/abandon", `{"reason":" "}`)
	s.get(200, cluster.AdminPath+"actions?subject="+fmt.Sprint(sent))
}

func (s checkedClient) conversations() {
	s.T.Helper()
	ann := s.as(s.NewCaller("ann", "submitter"))
	first := ann.Client.SendText("cid", "hello")
	ann.Client.SendText("cid", "still-there")
	require.NotEmpty(s.T, ann.get(200, cluster.MessagesPath+"?between=ann,cid&limit=1").Data("next_after"))
	s.post(204, cluster.MessagesPath+"/read", fmt.Sprintf(`{"between":"ann,cid","reader":"cid","up_to":%q}`, first))
	ann.get(200, cluster.MessagesPath+"?between=cid,ann&after="+first)
	ann.get(403, cluster.MessagesPath+"?between=bob,cid")
	ann.post(403, cluster.MessagesPath+"/read", fmt.Sprintf(`{"between":"ann,cid","reader":"cid","up_to":%q}`, first))
	s.post(404, cluster.MessagesPath+"/read", fmt.Sprintf(`{"between":"ann,bob","reader":"ann","up_to":%q}`, first))
	s.get(400, cluster.MessagesPath+"?between=ann,ann")
	ann.Client.SendText("bob", "to-bob")
	s.get(200, cluster.MessagesPath+"/peers?user=bob&limit=1")
	ann.get(403, cluster.MessagesPath+"/peers?user=bob")
	s.get(400, cluster.MessagesPath+"/peers?after=x")
	s.post(400, cluster.MessagesPath+"/read", fmt.Sprintf(`{"between":"ann,cid","reader":"bob","up_to":%q}`, first))
}

// accepting makes the calls of two-phase acknowledgements, to another server, which has NATS.
func (s checkedClient) accepting() {
	s.T.Helper()
	other, _ := s.Host.ServeWithNATS(s.T)
	a := checkedClient{other, s.checker}
	accepted := a.post(202, cluster.MessagesPath, `{"client_msg_id":"c-1","to":"user:bob","data":"hi","ack":"accepted"}`)
	require.Equal(s.T, "accepted", accepted.Data("ack"))
	require.Equal(s.T, "process", accepted.Data("durability"))
	require.Equal(s.T, "true", a.post(202, cluster.MessagesPath, `{"client_msg_id":"c-1","to":"user:bob","data":"hi","ack":"accepted"}`).Header.Get("Idempotency-Replayed"))
	a.post(422, cluster.MessagesPath, `{"client_msg_id":"c-1","to":"user:bob","data":"ho","ack":"accepted"}`)
	require.Equal(s.T, "accepted", a.get(200, accepted.Header.Get("Location")).Data("state"))
	require.Equal(s.T, "accepted", a.get(200, cluster.MessagesPath+"/by-key/c-1").Data("state"))
}
