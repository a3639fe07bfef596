package deliver

import (
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/loglimit"
	"github.com/sendonce/sendonce/shared/store/messages"
	"github.com/sendonce/sendonce/shared/store/webhooks"
	"github.com/sendonce/sendonce/shared/task"
)

type deliverer struct {
	env    *fn.Env
	cfg    Config
	poster *poster

	webhooksInFlight *workInFlight[webhooks.DueDelivery]
	messagesInFlight *workInFlight[urlMessage]

	robotTexts robotTexts
	pushed     pushedBytes

	changes       loglimit.ByKey[endpointState] // limits the log lines about failing and recovered endpoints
	nonPublic     loglimit.ByKey[string]        // limits the log lines about hosts without a public address
	unsignedPosts loglimit.ByKey[secretOwner]   // limits the log lines about posts that cannot be signed
	recordedBytes atomic.Int64                  // bytes of the events recorded since trimEventsIfNeeded last trimmed
}

// endpointState is an endpoint with one of its two states, healthy and failing.
type endpointState struct {
	id      task.ID
	healthy bool
}

// urlMessage is a message to a URL, ready to be posted.
type urlMessage struct {
	messages.Post
	signing webhooks.Signing
	token   []byte // with which the receiver confirms; nil if a 2xx counts as the confirmation
}

// secretOwner identifies the signing secret of deliveries to an endpoint, or of a caller's messages.
type secretOwner struct {
	caller   int64
	endpoint task.ID // zero for messages: they are signed with the caller's own secret
}

// wakeAt schedules a call of deliver at each of the times.
func (d *deliverer) wakeAt(times []time.Time) {
	for _, at := range times {
		d.env.WakeDeliverAt(at)
	}
}

// unsignedAttempt logs that a post cannot be signed, usually because an operator removed a key too early. unsignedAttempt returns a
// cancelled attempt: nothing was posted, and the work is claimed again when its lease ends. id is that of the message or endpoint.
func (d *deliverer) unsignedAttempt(owner secretOwner, id task.ID, err error) attempt {
	if unlogged, log := d.unsignedPosts.Next(owner); log {
		d.env.Log.Error("signing secret cannot be decrypted", "function", "deliver", "id", id, "caller_id", owner.caller, "cause", err.Error(), "unlogged", unlogged,
			"do", "if a key is missing, add the key with which the secret was encrypted to SENDONCE_ENCRYPTION_KEYS")
	}
	return attempt{at: time.Now(), cancelled: true, err: "the signing secret cannot be used; an operator must correct the settings"}
}
