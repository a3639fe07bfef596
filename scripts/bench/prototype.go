package bench

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/sendonce/sendonce/shared/sandbox"
)

// Prototype is a process of scripts/bench/prototype: a server that saves messages without the guarantees
// of Sendonce.
type Prototype struct {
	process *sandbox.Process
	address string
	number  atomic.Int64 // of the last message
}

// StartPrototype builds the prototype and starts it on the database into which pgbench inserts.
func (m *Machine) StartPrototype(ctx context.Context) (p *Prototype, err error) {
	binary := filepath.Join(m.dir, "prototype")
	if err := sandbox.Compile(ctx, binary, "github.com/sendonce/sendonce/scripts/bench/prototype"); err != nil {
		return nil, err
	}
	p = &Prototype{}
	p.process, p.address, err = m.startPeer(ctx, binary, m.Postgres.URL(baselineDatabase))
	return p, err
}

// Stop ends the process.
func (p *Prototype) Stop() error { return terminate(p.process) }

// Submit returns the baseline of messages that are submitted one by one.
func (p *Prototype) Submit(connections int, d time.Duration) Baseline {
	return Baseline{"prototype", func(ctx context.Context) (float64, error) {
		r, err := Phase{Name: "prototype", Connections: connections, Rows: NoLimit, Duration: d, Call: p.submit}.Run(ctx, p.address)
		return r.Rate, errors.Join(err, r.Err())
	}}
}

func (p *Prototype) submit(c *Client, _ int) (int, error) {
	response, err := c.Post("/", nil, append(appendMessage(make([]byte, 0, 96), p.number.Add(1)), '}'))
	if err != nil {
		return 0, err
	}
	if Text(response, "task_id") == "" {
		return 0, errors.New("the response of the prototype has no task_id")
	}
	return 1, nil
}
