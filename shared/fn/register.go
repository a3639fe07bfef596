package fn

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	framework "github.com/GoogleCloudPlatform/functions-framework-go/functions"

	"github.com/sendonce/sendonce/shared/config"
)

// Register reads the settings and registers one handler with the functions framework. The server of
// the framework then uses this handler for every path. The handler serves the function that
// FUNCTION_TARGET names, or all functions. A setting of one of the commands does not count as misspelt.
//
// Call Register once in a process, before the framework starts. From then on, SIGTERM and SIGINT drain
// the process: calls in progress have SENDONCE_DRAIN_TIMEOUT to finish. Then the returned Env is closed
// and the process exits.
func Register(commands []config.Reader, functions ...Function) (*Env, error) {
	env, served, err := Prepare(commands, functions, true)
	if err != nil {
		return nil, err
	}
	limitMemory(&env.Config)
	h, err := assemble(context.Background(), env, served)
	if err == nil {
		err = env.listenForScrapes(context.Background())
	}
	if err != nil {
		env.Close()
		return nil, err
	}
	name := cmp.Or(env.Config.FunctionTarget, AllFunctions)
	if err := os.Setenv("FUNCTION_TARGET", name); err != nil { // the framework reads it when it starts
		env.Close()
		return nil, fmt.Errorf("name the functions for the framework: %w", err)
	}
	framework.HTTP(name, h.ServeHTTP)
	env.endOnSignal()
	return env, nil
}

// endOnSignal drains and ends the process on a signal: the framework does not drain, and exposes
// neither its server nor its listener. For drainGrace, a new call is still handled, as the last one of
// its connection. Later calls get 503, so that their callers retry with another instance.
func (e *Env) endOnSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		signal.Stop(signals) // a second signal kills
		err := e.drain(drainGrace, e.limiter.close)
		e.Close()
		if err != nil {
			e.Log.Error("serve failed", "cause", err.Error())
			os.Exit(1)
		}
		e.Log.Info("drained")
		os.Exit(0)
	}()
}
