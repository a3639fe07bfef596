package messages

import (
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/intake"
	"github.com/sendonce/sendonce/shared/message"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/task"
)

type handlers struct {
	env    *fn.Env
	intake *intake.Intake
}

// resourceName is what error texts call the resource that {id} identifies.
const resourceName = "message"

func messageNotFound() error { return task.Refuse(task.CodeNotFound, "no such "+resourceName) }

// shownAddress returns the address of a message for the caller. A viewer sees only the host of another caller's URL.
func shownAddress(c *fn.Call, to message.Address, owner int64) string {
	if to.Kind == message.URL && owner != c.Caller.ID {
		return c.ShownURL(to.Name)
	}
	return to.String()
}

// messageResponse converts a saved message to a response for the caller.
func messageResponse(c *fn.Call, m messages.Detail) api.MessageResponse {
	receipts := make([]api.Receipt, len(m.Receipts))
	for i, r := range m.Receipts {
		receipts[i] = api.Receipt{Consumer: r.Consumer, ConfirmedAt: r.ConfirmedAt.UTC(), SendNo: int(r.SendNo)}
	}
	return api.MessageResponse{
		ServerMsgID: m.ID.String(), ClientMsgID: m.ClientMsgID, From: m.From, To: shownAddress(c, m.To(), m.CallerID),
		ExchangeName: m.Exchange, RoutingKey: m.RoutingKey, Type: m.Type, Data: m.Data,
		Status: int(m.Status), State: m.State(), Stuck: m.Stuck(), Confirm: m.Confirm,
		MaxSends: int(m.MaxSends), RemainingSends: int(m.Remaining), Epoch: int(m.Epoch),
		ExpectedReceipts: int(m.ExpectedReceipts), Receipts: receipts, LastError: m.LastError, FinishedBy: m.FinishedBy,
		AcceptSeq: m.AcceptSeq, AcceptedAt: fn.Instant(m.AcceptedAt), Producer: m.Producer, DeliveredAt: fn.Instant(m.DeliveredAt),
		NextSendAt: fn.Instant(m.NextAt), SentAt: fn.Instant(m.SentAt), CreatedAt: m.CreatedAt.UTC(), UpdatedAt: m.UpdatedAt.UTC(),
		Archived: m.Archived,
	}
}

// pageOf returns a page of messages. If there are more, next_after is the id of the last one.
func pageOf(c *fn.Call, found []messages.Detail, more bool) api.Page[api.MessageResponse] {
	convert := func(m messages.Detail) api.MessageResponse { return messageResponse(c, m) }
	return fn.PageOf(found, more, convert, func(m messages.Detail) task.ID { return m.ID })
}
