package bench

import (
	"fmt"
	"time"

	"github.com/sendonce/sendonce/shared/sandbox"
)

const (
	readyTimeout = time.Minute
	drainTimeout = 40 * time.Second // more than the server's own default of 25 s
)

func terminate(p *sandbox.Process) error {
	code, err := p.Terminate(drainTimeout)
	if err == nil && code != 0 {
		err = fmt.Errorf("a process ended with %d", code)
	}
	return err
}
