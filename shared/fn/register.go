package fn

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	framework "github.com/GoogleCloudPlatform/functions-framework-go/functions"

	"github.com/sendonce/sendonce/shared/config"
)

// Register reads the settings and registers with the functions framework what
// FUNCTION_TARGET names: one of the functions, or all of them as AllFunctions. The
// framework's server then serves that on every path. commands are the other readers of
// settings.
//
// Call it once in a process, before the framework starts. From then on SIGTERM and
// SIGINT end the process: calls under way finish first, for at most
// SENDONCE_DRAIN_TIMEOUT. The Env is ready for use; it closes at that end.
func Register(commands []config.Reader, functions ...Function) (*Env, error) {
	env, served, err := Prepare(commands, functions, true)
	if err != nil {
		return nil, err
	}
	h, err := assemble(context.Background(), env, served)
	if err == nil {
		err = env.serveMetrics(context.Background())
	}
	if err != nil {
		env.Close()
		return nil, err
	}
	name := cmp.Or(env.Config.FunctionTarget, AllFunctions)
	if err := os.Setenv("FUNCTION_TARGET", name); err != nil { // which the framework reads when it starts
		env.Close()
		return nil, fmt.Errorf("name the functions for the framework: %w", err)
	}
	framework.HTTP(name, h.ServeHTTP)
	env.endOnSignal()
	return env, nil
}

// endOnSignal does for the framework, whose server knows no signals, what Serve
// does for ours. The framework does not expose its listener or its server: what still
// comes gets its response for a moment as the last call of its connection, and then 503,
// so that the caller repeats it elsewhere.
func (e *Env) endOnSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		signal.Stop(signals) // a second one kills
		err := e.drain(drainGrace)
		e.Close()
		if err != nil {
			e.Log.Error("serve failed", "cause", err.Error())
			os.Exit(1)
		}
		e.Log.Info("drained")
		os.Exit(0)
	}()
}

// drain returns when every call has its response, or with an error when DrainTimeout
// ends before. Calls may come for the time that last gives.
func (e *Env) drain(last time.Duration) error {
	e.Log.Info("draining", "timeout", e.Config.DrainTimeout.String())
	limit, cancel := context.WithTimeout(context.Background(), e.Config.DrainTimeout)
	defer cancel()
	close(e.limiter.draining)
	time.Sleep(min(last, e.Config.DrainTimeout))
	e.limiter.close()
	if err := e.limiter.waitUntilIdle(limit); err != nil {
		return fmt.Errorf("drain: %d calls were cut off: %w", e.limiter.countInFlight(), err)
	}
	return nil
}
