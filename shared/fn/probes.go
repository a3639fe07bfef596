package fn

import "context"

// ListenForProbes listens at the configured address, for a process without functions, such as the trigger. serve
// handles only /healthz, /readyz and /metrics, until its context ends. /healthz and /readyz show the errors of alive
// and ready to everybody.
func ListenForProbes(ctx context.Context, env *Env, alive, ready func() error) (serve func(context.Context) error, err error) {
	m, err := newMux(env, nil)
	if err != nil {
		return nil, err
	}
	m.alive, m.ready = alive, ready
	l, err := listen(ctx, &env.Config)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return newServer(env, m).run(ctx, l) }, env.listenForScrapes(ctx)
}
