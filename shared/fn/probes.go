package fn

import (
	"context"
	"net"
)

// Probes is the server of a process without functions, such as the trigger: it serves only /healthz,
// /readyz and /metrics.
type Probes struct {
	env      *Env
	mux      *mux
	listener net.Listener
}

// ListenForProbes listens at the configured address. /healthz and /readyz show the errors of alive
// and ready to everybody.
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
	return &Probes{env, m, l}, env.listenForScrapes(ctx)
}

// Serve handles probes until ctx ends.
func (p *Probes) Serve(ctx context.Context) error {
	return newServer(p.env, p.mux).run(ctx, p.listener)
}
