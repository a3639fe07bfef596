package messages

import (
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/task"
)

// byKeyRequest adds validation to api.MessageByKeyRequest.
type byKeyRequest api.MessageByKeyRequest

func (r *byKeyRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.User("from", r.From)
	return bad
}

// maxToken limits the characters of a token; issued tokens are shorter.
const maxToken = 100

// receivedRequest adds validation to api.ReceivedRequest.
type receivedRequest api.ReceivedRequest

func (r *receivedRequest) Validate() []task.Field {
	var bad decode.Rules
	bad.User("consumer", r.Consumer)
	bad.AtMost("token", r.Token, maxToken)
	return bad
}
