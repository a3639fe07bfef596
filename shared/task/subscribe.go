package task

// The queues of subscribe messages. Nothing else is in them, and every
// task in them has a row of subscribe_message_logs.
const (
	WeChatQueue   = "wechat"          // sent by the function wechat
	RecordedQueue = "wechat.recorded" // sent by services that call WeChat themselves
)

// IsSubscription tells whether the queue is one of subscribe messages.
func IsSubscription(queue string) bool { return queue == WeChatQueue || queue == RecordedQueue }

// SendStatus is send_status of subscribe_message_logs.
type SendStatus int16

// The values of send_status.
const (
	SubscribeSending SendStatus = iota
	SubscribeSent
	SubscribeFailed
)

// The error of a report of failure without one.
const (
	SendFailedCode    = "SEND_FAILED"
	SendFailedMessage = "消息发送失败"
)

// SendStatus is how far the task brought its subscribe message. One that waits
// after a failed try counts as failed, so that a new order replaces it.
func (t Task) SendStatus() SendStatus {
	switch {
	case t.State == Succeeded:
		return SubscribeSent
	case t.State == Failed, t.waitsAfterFailure():
		return SubscribeFailed
	default:
		return SubscribeSending
	}
}

func (t Task) waitsAfterFailure() bool {
	return (t.State == Scheduled || t.State == Pending) && t.Ended == EndedFailed
}

// SendAgain tells whether another order for the same subscribe message takes this
// task's place; else it is skipped. A recorded one that nobody has in hand waits
// for nobody but the next to record it.
func (t Task) SendAgain() bool {
	return t.SendStatus() == SubscribeFailed || t.Queue == RecordedQueue && (t.State == Scheduled || t.State == Pending)
}

// Doubtful tells whether a try of the task ended just now of which nobody knows
// whether it was delivered.
func (t Task) Doubtful() bool {
	return t.Ended == EndedUnknown || t.Ended == EndedByTimeout && !(t.MarksSending && t.SendingAt.IsZero())
}
