package fn

import (
	"bytes"

	"github.com/sendonce/sendonce/shared/api"
)

const (
	copiesInPage   = 2        // a page has its text, and each response of the API, twice in memory
	pageMemoryStep = 64 << 10 // bytes
)

// visitMemory is the memory of a page, without the memory of the calls that the page makes.
type visitMemory struct {
	call      *callMemory // nil for visitors who are not logged in: nothing is charged
	charged   int         // bytes
	responses int         // bytes of the responses of the API that the page still uses
}

// reserve charges the memory that the page needs when its text has n bytes. The memory is released when the visit ends.
// If there is no room, the error is an *api.Error with status 503.
func (m *visitMemory) reserve(n int) error {
	more := copiesInPage*(m.responses+n) - m.charged
	if m.call == nil || more <= 0 {
		return nil
	}
	more += pageMemoryStep
	if m.call.tryReserve(int64(more)) != nil {
		refused := errNoMemory()
		return &api.Error{Status: statusOf(refused.Code), Code: refused.Code, Message: refused.Message}
	}
	m.charged += more
	return nil
}

// PageBuffer holds the text of a page. The text is charged to the memory of the visitor, if the visitor is logged in.
type PageBuffer struct {
	text   bytes.Buffer
	memory *visitMemory
}

// Write appends b. If the visitor has no memory left, the error is an *api.Error with status 503.
func (p *PageBuffer) Write(b []byte) (int, error) {
	if err := p.memory.reserve(p.text.Len() + len(b)); err != nil {
		return 0, err
	}
	return p.text.Write(b)
}

// Bytes returns the text.
func (p *PageBuffer) Bytes() []byte { return p.text.Bytes() }
