package bench

import (
	"fmt"
	"time"

	"github.com/sendonce/sendonce/shared/sandbox"
)

const (
	readyTimeout = time.Minute
	drainTimeout = 40 * time.Second // more than the default of SENDONCE_DRAIN_TIMEOUT, 25 s
)

// terminate ends a process. It returns an error if the process had to be killed or its exit code is not 0.
func terminate(p *sandbox.Process) error {
	code, err := p.Terminate(drainTimeout)
	if err == nil && code != 0 {
		err = fmt.Errorf("a process exited with code %d", code)
	}
	return err
}
