package task

// The queues of WeChat subscribe messages (订阅消息). Every task in them, and no other, has a row of
// subscribe_message_sends.
const (
	WeChatQueue   = "wechat"          // sent by the function wechat
	RecordedQueue = "wechat.recorded" // recorded, already claimed, by services that call WeChat themselves
)

// IsSubscribeQueue reports whether the queue is one of subscribe messages.
func IsSubscribeQueue(queue string) bool { return queue == WeChatQueue || queue == RecordedQueue }

// SendStatus is the column send_status of subscribe_message_logs.
type SendStatus int16

const (
	SubscribeSending SendStatus = iota
	SubscribeSent
	SubscribeFailed
)

// The error code and text of a failed subscribe message that has none of its own.
const (
	SendFailedCode    = "SEND_FAILED"
	SendFailedMessage = "消息发送失败"
)

// SendStatus returns the status of the task's subscribe message. A task that was reported as failed and waits for a
// retry counts as failed, so that a new request replaces it.
func (t Task) SendStatus() SendStatus {
	switch {
	case t.State == Succeeded:
		return SubscribeSent
	case t.State == Failed, t.Ended == EndedFailed && (t.State == Scheduled || t.State == Pending):
		return SubscribeFailed
	default:
		return SubscribeSending
	}
}

// Replaceable reports whether a new request for the same subscribe message replaces this task. Otherwise the new
// request is skipped. A waiting task of RecordedQueue is replaced too: nobody claims from that queue, so the task would
// wait forever.
func (t Task) Replaceable() bool {
	return t.SendStatus() == SubscribeFailed || t.Queue == RecordedQueue && (t.State == Scheduled || t.State == Pending)
}

// MayHaveBeenSent reports whether the last send may have been delivered although its outcome is unknown (see expireLease).
func (t Task) MayHaveBeenSent() bool {
	return t.Ended == EndedUnknown || t.Ended == EndedByTimeout && !(t.MarksSending && t.SendingAt.IsZero())
}
