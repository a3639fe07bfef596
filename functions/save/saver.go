package save

import (
	"sync/atomic"

	"github.com/sendonce/sendonce/shared/fn"
)

type saver struct {
	env           *fn.Env
	reorders      reorderCounter
	unpurgedBytes atomic.Int64 // saved since this process last scheduled a purge
}
