package fn

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/config"
)

// verifyTimeout limits how long the start of a process waits for NATS.
const verifyTimeout = 3 * time.Second

// verifyDurability fails if the stream of accepted messages is less durable than TWO_PHASE_DURABILITY
// requires, or if a NATS server is too old for the stream. If the durability of the stream is not known yet,
// the process starts. Until it is known, the process acknowledges a message only once Postgres has it.
func verifyDurability(ctx context.Context, env *Env) error {
	twoPhase := env.Config.TwoPhase
	if !twoPhase.Enabled || twoPhase.Durability == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	actual, err := env.Bus().Durability(ctx, twoPhase.MonitorURL)
	switch {
	case actual.Covers(twoPhase.Durability):
		return nil
	case errors.Is(err, bus.ErrOldServer):
		return config.Error{{Name: "TWO_PHASE_ENABLED", Message: fmt.Sprintf("is true, but %v: upgrade NATS, or set TWO_PHASE_ENABLED to false", err)}}
	case err != nil:
		env.Log.Warn("no message is acknowledged before it is saved: it is not known whether the stream is as durable as TWO_PHASE_DURABILITY requires",
			"required", twoPhase.Durability.String(), "known", actual.String(), "error", err)
		return nil
	}
	return config.Error{{Name: "TWO_PHASE_DURABILITY", Message: fmt.Sprintf("is %q but the stream %s gives %s: %s, or require less",
		twoPhase.Durability, twoPhase.Stream, actual, remedy(actual, twoPhase.Durability))}}
}

// remedy returns how to make a stream as durable as required.
func remedy(actual, required bus.Durability) string {
	var steps []string
	switch {
	case actual == 0:
		return "keep the stream in files"
	case !actual.Covers(required & bus.DurableReplicated):
		steps = append(steps, "keep the stream on 3 hosts (set SENDONCE_NATS_REPLICAS=3 before the stream is created, or edit the stream)")
	}
	if !actual.Covers(required & bus.DurableHost) {
		steps = append(steps, "set sync_interval: always on every NATS server (2.15 or newer) that keeps the stream, and name these servers in TWO_PHASE_NATS_MONITOR_URL")
	}
	return strings.Join(steps, " and ")
}
