// Command run is `make run`. It starts Postgres (unless DATABASE_URL is set), NATS (unless NATS_URL
// is set), one server process with all functions, the trigger, a fake WeChat (unless WECHAT_APP_ID is
// set), a demo sender, and a sink that prints webhooks. With PROCS=1 each function has its own process,
// which starts when the function is called and ends after a time without calls. The data is in
// SENDONCE_HOME. Everything that this process has started ends with it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
)

const (
	readyTimeout = time.Minute
	serverName   = "the server" // its key in the map of children, and its name in error texts

	// memoryLimit is the GOMEMLIMIT of this process, in bytes, unless the user has set one. Without a limit, the
	// memory of the NATS server in this process grows with its streams.
	memoryLimit = 256 << 20
)

func main() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	ctx, release := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	// A second Ctrl-C ends this process at once, without the drain.
	context.AfterFunc(ctx, release)
	s, err := readSettings()
	if err == nil {
		err = run(ctx, s, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "make run:", err)
		os.Exit(1)
	}
}

// run starts everything, and prints how to use the service. It returns nil once ctx is done and everything has ended,
// or an error if something failed.
func run(ctx context.Context, s settings, out io.Writer) (err error) {
	lock, err := lockHome(ctx, s.home)
	if err != nil {
		return err
	}
	defer lock.Close()
	s, err = s.withPassword()
	if err != nil {
		return err
	}
	port, err := reservePort(ctx, s)
	if err != nil {
		return err
	}
	defer port.close()
	netrcFile, err := writeSecret(s.home, "netrc", netrcOf(s.username, s.password))
	if err != nil {
		return err
	}
	sink, err := listenForSink(ctx, s, out)
	if err != nil {
		return err
	}
	defer sink.close()
	binary, err := buildServer(ctx, s.home, out)
	if err != nil {
		return nilIfInterrupted(ctx, err)
	}
	databaseURL, postgres, err := startPostgres(ctx, s, out)
	if err != nil {
		return nilIfInterrupted(ctx, err)
	}
	defer func() { err = errors.Join(err, postgres.Stop()) }()

	nats, err := startNATS(ctx, s, out)
	if err != nil {
		return nilIfInterrupted(ctx, err)
	}
	defer func() { err = errors.Join(err, nats.stop()) }()

	s, stopWeChat, err := startWeChat(ctx, s, out)
	if err != nil {
		return nilIfInterrupted(ctx, err)
	}
	defer func() { err = errors.Join(err, stopWeChat()) }()

	env, ownerEnv, err := s.processEnv(databaseURL, nats.url)
	if err != nil {
		return err
	}
	if err := migrate(ctx, binary, slices.Concat(env, ownerEnv), out); err != nil {
		return nilIfInterrupted(ctx, err)
	}
	log, err := openLog(s.home, "sendonce.log")
	if err != nil {
		return err
	}
	defer log.Close()
	logging, stopLogging := context.WithCancel(context.WithoutCancel(ctx)) // the server and the trigger still log while they drain
	defer stopLogging()
	go limitLogs(logging, s.home, out)
	printStep(out, "serve", "logs in "+log.Name())
	server, err := startServer(s, binary, env, nats, port, log, out)
	if err != nil {
		return err
	}
	trigger, err := startTrigger(ctx, s, binary, nats.withLogin(bus.UserTrigger, env), log, out)
	if err != nil {
		return errors.Join(err, drain("server", server, out))
	}
	children := map[string]child{serverName: server, "the trigger": trigger}
	if p := postgres.Process(); p != nil {
		children["postgres"] = p
	}
	err = runUntilEnd(ctx, s, children, s.runEnv(databaseURL, nats.runEnv()), netrcFile, sink, log, out)
	// The trigger ends first, because its calls need a response: from the server or, if the server has ended, from port.
	if hasEnded(server) {
		port.refuse()
	}
	err = errors.Join(err, drain("trigger", trigger, out))
	port.refuse()
	return errors.Join(err, drain("server", server, out))
}

// buildServer builds the functions and returns the path of the binary.
func buildServer(ctx context.Context, home string, out io.Writer) (binary string, err error) {
	printStep(out, "build", "functions")
	binary = filepath.Join(home, "bin", "sendonce")
	if err := os.MkdirAll(filepath.Dir(binary), 0o755); err != nil {
		return "", err
	}
	return binary, sandbox.Compile(ctx, binary, "github.com/sendonce/sendonce/functions/sendonce")
}

// migrate runs the command migrate of the binary.
func migrate(ctx context.Context, binary string, env []string, out io.Writer) error {
	printStep(out, "migrate", "the schema")
	cmd := exec.CommandContext(ctx, binary, "migrate")
	cmd.Env = withoutBasicAuthPassword(withOnlySecretsOf(env, "migrate"))
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("migrate: %w\n%s", err, text)
	}
	return nil
}

// startServer starts one process that serves all functions; with PROCS=1 it starts the activator.
func startServer(s settings, binary string, env []string, nats broker, port *reservedPort, log *os.File, out io.Writer) (child, error) {
	if s.procs {
		return startActivator(s, binary, env, nats, port, log, out)
	}
	env = withOnlySecretsOf(nats.withLogin(bus.UserAll, env), functionNames()...)
	return startSendonce(sandbox.Command{Path: binary, Env: env, Listener: port.socket, Log: log})
}

// startTrigger starts the trigger under a supervisor. The trigger has its own port, for probes and metrics.
func startTrigger(ctx context.Context, s settings, binary string, env []string, log *os.File, out io.Writer) (child, error) {
	listener, err := listenOnSavedPort(ctx, s.home, "trigger", out)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	socket, err := listener.File() // a copy, which stays open for restarts
	if err != nil {
		return nil, err
	}
	printStep(out, "trigger", "http://"+listener.Addr().String()+"/metrics")
	env = withoutBasicAuthPassword(withOnlySecretsOf(env, "trigger"))
	if s.hasMetricsPort() { // the server listens on that port, so the trigger cannot
		env = append(env, metricsSetting+"=open")
	}
	return supervise("trigger", func() (*sandbox.Process, error) {
		return startSendonce(sandbox.Command{Path: binary, Args: []string{"trigger"}, Env: env, Listener: socket, Log: log})
	}, out, firstPause)
}

// runUntilEnd waits until the server is ready, writes run.env, opens the sink, prints how to use the service, and runs the
// demo sender until ctx is done or a child ends. It returns nil if ctx is done, and an error if the server does not become
// ready or a child ends by itself.
func runUntilEnd(ctx context.Context, s settings, children map[string]child, runEnv, netrcFile string, sink *sink, logs, out io.Writer) (err error) {
	starting, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := children[serverName].WaitReady(starting, s.url()+"/readyz"); err != nil {
		return nilIfInterrupted(ctx, err)
	}
	path, err := writePrivate(s.home, "run.env", runEnv)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(path)) }()
	sinkURL := ""
	if sink != nil {
		err := sink.open(starting, logs)
		switch {
		case err == nil:
			defer sink.removeEndpoint()
			sinkURL = sink.url
		case ctx.Err() == nil:
			printStep(out, "sink", "none: "+err.Error())
		}
	}
	if ctx.Err() == nil {
		printUsage(out, s, netrcFile, sinkURL)
	}

	ctx, stop := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer stop()
	if s.demoSender {
		background.Go(func() { runDemoSender(ctx, s, out) })
	}
	ended := make(chan string, len(children))
	for name, child := range children {
		background.Go(func() {
			select {
			case <-child.Exited():
				ended <- name
			case <-ctx.Done():
			}
		})
	}
	select {
	case <-ctx.Done():
		printStep(out, "stop", "")
		return nil
	case name := <-ended:
		return fmt.Errorf("%s ended unexpectedly with %d:\n%s", name, children[name].ExitCode(), tail(children[name].Output()))
	}
}

func printUsage(out io.Writer, s settings, netrcFile, sinkURL string) {
	whereIsPassword := "the value of BASIC_AUTH_PASSWORD"
	if s.passwordFile != "" {
		whereIsPassword = "in " + s.passwordFile
	}
	sinkLine := ""
	if sinkURL != "" {
		sinkLine = fmt.Sprintf("  sink      %s prints webhooks; a callback_url may be this URL, too\n", sinkURL)
	}
	fmt.Fprintf(out, `
  console   %[1]s/console
  API docs  %[1]s/docs
  API       %[1]s/api/v1
  user      %[2]s
  password  %[3]s
%[5]s  try       curl --netrc-file '%[4]s' -H 'Content-Type: application/json' -d '{"phone_number":"13800138000","content":"hello"}' %[1]s/api/v1/sms/send

ready %[1]s
`, s.url(), s.username, whereIsPassword, netrcFile, sinkLine)
}

// nilIfInterrupted returns err, or nil if ctx is done: an interrupt during the start is no error.
func nilIfInterrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
