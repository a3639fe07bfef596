package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sendonce/sendonce/shared/sandbox"
)

const (
	readyTimeout = time.Minute
	drainTimeout = 40 * time.Second // more than the server's own default of 25 s
)

// startPeer starts a program and waits until it prints a JSON line with its address.
func (m *Machine) startPeer(ctx context.Context, binary, databaseURL string) (p *sandbox.Process, address string, err error) {
	p, err = sandbox.Start(sandbox.Command{Path: binary, Env: []string{"PATH=" + os.Getenv("PATH"), "DATABASE_URL=" + databaseURL}})
	if err != nil {
		return nil, "", err
	}
	ready, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := p.WaitFor(ready, "}\n"); err != nil {
		return nil, "", errors.Join(err, terminate(p))
	}
	return p, Text([]byte(p.Output()), "address"), nil
}

func terminate(p *sandbox.Process) error {
	code, err := p.Terminate(drainTimeout)
	if err == nil && code != 0 {
		err = fmt.Errorf("a process ended with %d", code)
	}
	return err
}
