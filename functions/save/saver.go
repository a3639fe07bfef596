package save

import (
	"sync/atomic"

	"github.com/sendonce/sendonce/shared/fn"
)

type saver struct {
	env           *fn.Env
	reorders      reorderCounter
	acceptedBytes atomic.Int64 // saved since this process last scheduled a purge
}
