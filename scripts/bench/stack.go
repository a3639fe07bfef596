package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
)

const waitTimeout = 5 * time.Minute // of each wait until work is done

// BaselineSubject is a subject with a stream of its own. Publications to it are the baseline of messages.
const BaselineSubject = "baseline"

// Stack has processes of Sendonce with one database and one NATS server. The NATS server runs in this process.
type Stack struct {
	Machine   *Machine
	Env       []string  // settings of all processes
	Conn      *pgx.Conn // to the database of the processes
	JS        jetstream.JetStream
	processes []*sandbox.Process
	close     []func() error
}

// NewStack connects to the migrated database, and starts NATS with the stream of BaselineSubject. The settings in more
// override the defaults of all processes.
func NewStack(ctx context.Context, m *Machine, more ...string) (s *Stack, err error) {
	s = &Stack{Machine: m}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.Conn, err = pgx.Connect(ctx, m.URL()); err != nil {
		return s, err
	}
	s.close = append(s.close, func() error { return s.Conn.Close(context.WithoutCancel(ctx)) })
	server, err := natsserver.Start(ctx, natsserver.Options{})
	if err != nil {
		return s, err
	}
	s.close = append(s.close, server.Stop)
	s.Env = slices.Concat(environment(m.URL()), []string{"NATS_URL=" + server.URL()}, more) // the last value of a name counts
	nc, err := nats.Connect(server.URL())
	if err != nil {
		return s, err
	}
	s.close = append(s.close, func() error { nc.Close(); return nil })
	if s.JS, err = jetstream.New(nc); err != nil {
		return s, err
	}
	_, err = s.JS.CreateStream(ctx, jetstream.StreamConfig{Name: "BASELINE", Subjects: []string{BaselineSubject}})
	return s, err
}

// Close ends everything in the reverse order of its start.
func (s *Stack) Close() error {
	err := s.StopProcesses()
	for _, c := range slices.Backward(s.close) {
		err = errors.Join(err, c())
	}
	return err
}

// Start starts a process that serves a function, or all functions if function is "". It waits until
// the process is ready, and returns its address. The settings in more override those in s.Env.
func (s *Stack) Start(ctx context.Context, function string, more ...string) (string, error) {
	p, err := s.run(slices.Concat(s.Env, more, []string{"FUNCTION_TARGET=" + function}))
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := p.WaitFor(ctx, `"msg":"listening"`); err != nil {
		return "", err
	}
	address := JSONString([]byte(p.Output()), "address")
	return address, p.WaitReady(ctx, "http://"+address+"/readyz")
}

// Connect starts a process that serves a function, and connects to it.
func (s *Stack) Connect(ctx context.Context, function string) (*Client, error) {
	address, err := s.Start(ctx, function)
	if err != nil {
		return nil, err
	}
	return Dial(address)
}

// StartTrigger starts a trigger that sends events to the functions at an address. stop ends the trigger.
func (s *Stack) StartTrigger(address string) (stop func() error, err error) {
	p, err := s.run(slices.Concat(s.Env, []string{"SENDONCE_FUNCTIONS_URL=http://" + address}), "trigger")
	if err != nil {
		return nil, err
	}
	return func() error {
		s.processes = slices.DeleteFunc(s.processes, func(other *sandbox.Process) bool { return other == p })
		return terminate(p)
	}, nil
}

// run starts a process that writes its log to a file. A pipe would cost CPU time of this process during the measurement.
func (s *Stack) run(env []string, args ...string) (*sandbox.Process, error) {
	log, err := os.CreateTemp(s.Machine.dir, "*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p, err := sandbox.Start(sandbox.Command{Path: s.Machine.Binary, Args: args, Env: env, Log: log})
	if err == nil {
		s.processes = append(s.processes, p)
	}
	return p, err
}

// StopProcesses ends all processes, in the reverse order of their start. It returns an error if a process had to be killed or its
// exit code is not 0.
func (s *Stack) StopProcesses() error {
	var errs []error
	for _, p := range slices.Backward(s.processes) {
		errs = append(errs, terminate(p))
	}
	s.processes = nil
	return errors.Join(errs...)
}

// Wait waits until the query condition, which selects one boolean, returns true, for at most 5 minutes.
func (s *Stack) Wait(ctx context.Context, condition string, args ...any) error {
	return WaitUntil(ctx, 500*time.Microsecond, strings.TrimSpace(condition), func() (isTrue bool, err error) {
		err = s.Conn.QueryRow(ctx, condition, args...).Scan(&isTrue)
		return isTrue, err
	})
}

// WaitUntil calls check at intervals until it returns true or an error, for at most 5 minutes. what is used only in the
// error.
func WaitUntil(ctx context.Context, interval time.Duration, what string, check func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if done, err := check(); err != nil || done {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		}
	}
}
