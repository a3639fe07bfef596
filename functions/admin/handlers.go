package admin

import (
	"time"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/decode"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/task"
)

// readTimeout limits the calls that may read many rows. It equals the statement timeout of the database role for reads (see migrations).
const readTimeout = 15 * time.Second

const maxReasonLength = 500 // characters of an operator's reason

type handlers struct{ env *fn.Env }

type listRequest api.ListRequest

func (r *listRequest) Validate() []task.Field {
	var bad decode.BadFields
	bad.Page(r.Limit)
	return bad
}
