package save

import (
	"sync/atomic"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/store/admin"
	"github.com/sendonce/sendonce/shared/store/messages"
)

type saver struct {
	admin         *admin.Store
	messages      *messages.Store
	env           *fn.Env
	reorders      reorderCounter
	acceptedBytes atomic.Int64 // saved since this process last scheduled a purge
}
