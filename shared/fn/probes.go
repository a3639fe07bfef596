package fn

import (
	"context"
	"net"
)

// Probes is a server of a process without functions: it serves /healthz, /readyz and
// /metrics alone.
type Probes struct {
	env      *Env
	mux      *mux
	listener net.Listener
}

// ListenForProbes listens at the configured address. An error of alive or ready is what
// /healthz or /readyz shows, to anybody.
func ListenForProbes(ctx context.Context, env *Env, alive, ready func() error) (*Probes, error) {
	m, err := newMux(env, nil)
	if err != nil {
		return nil, err
	}
	m.alive, m.ready = alive, ready
	l, err := listen(ctx, &env.Config)
	if err != nil {
		return nil, err
	}
	return &Probes{env, m, l}, env.serveMetrics(ctx)
}

// Serve handles probes until ctx ends.
func (p *Probes) Serve(ctx context.Context) error {
	return newServer(p.env, p.mux).run(ctx, p.listener)
}
