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

	changes       loglimit.ByKey[endpointState] // limits the log lines about failing and recovered endpoints
	nonPublic     loglimit.ByKey[string]        // limits the log lines about hosts without a public address
	unsignedPosts loglimit.ByKey[secretOwner]   // limits the log lines about posts that cannot be signed
	recordedBytes atomic.Int64                  // bytes of the events recorded since trimEventsIfNeeded last trimmed
}

// endpointState is whether an endpoint is healthy or fails.
type endpointState struct {
	id      task.ID
	healthy bool
}

// urlMessage is a message to a URL, ready to be posted.
type urlMessage struct {
	messages.Post
	signing webhooks.Signing
	token   []byte // for the confirmation; nil if a 2xx is the confirmation
}

// secretOwner identifies a signing secret.
type secretOwner struct {
	caller   int64
	endpoint task.ID // zero for the caller's own secret, which signs the caller's messages
}

// wakeAt schedules a call of deliver at each of the times.
func (d *deliverer) wakeAt(times []time.Time) {
	for _, at := range times {
		d.env.WakeDeliverAt(at)
	}
}

// unsignedAttempt logs that a post cannot be signed, usually because an operator removed a key too early. It returns a cancelled
// attempt: nothing was posted, and the work is claimed again when its lease ends. id is the id of the message or the endpoint.
func (d *deliverer) unsignedAttempt(owner secretOwner, id task.ID, err error) attempt {
	if unlogged, log := d.unsignedPosts.Next(owner); log {
		d.env.Log.Error("signing secret cannot be decrypted", "function", "deliver", "id", id, "caller_id", owner.caller, "cause", err.Error(), "unlogged", unlogged,
			"do", "if a key is missing, add the key with which the secret was encrypted to SENDONCE_ENCRYPTION_KEYS")
	}
	return attempt{at: time.Now(), cancelled: true, err: "the signing secret cannot be used; an operator must correct the settings"}
}
