package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox/natsserver"
)

// examplePoints is the NATS user of the service in `make example` that gives customers points for paid orders.
const examplePoints = "points"

// natsLimits limits the number of all connections together, with and without a login, and the number of subscriptions of
// each connection. The clients of the run can connect even if other programs open connections all the time: NATS closes a
// connection without a login after 2 s.
const natsLimits = "max_connections: 1024\nmax_subscriptions: 8192\n"

// broker is the NATS server of the run.
type broker struct {
	url       string            // the value of NATS_URL, or the URL of the started server without credentials
	passwords map[string]string // by NATS user; nil = NATS_URL is set, and the settings have the login
	files     map[string]string // paths of the files with these passwords, by NATS user; nil if passwords is nil
	stop      func() error
}

// keepRunning is the stop function of a server that this run did not start.
func keepRunning() error { return nil }

// startNATS returns the server of NATS_URL. If NATS_URL is not set, it starts a server with the users of a deployment;
// the first run generates their passwords.
func startNATS(ctx context.Context, s settings, out io.Writer) (broker, error) {
	if natsURL := s.all["NATS_URL"]; natsURL != "" {
		printStep(out, "nats", "at NATS_URL")
		return broker{url: natsURL, stop: keepRunning}, nil
	}
	b := broker{passwords: map[string]string{}, files: map[string]string{}}
	subjects := strings.FieldsFunc(s.all["NATS_SUBJECTS"], func(c rune) bool { return c == ',' || c == ' ' })
	for _, subject := range subjects {
		if err := bus.CheckSubject(subject); err != nil {
			return broker{}, fmt.Errorf("NATS_SUBJECTS: %w", err)
		}
	}
	users := bus.Users(cmp.Or(s.all["TWO_PHASE_STREAM"], bus.StreamAccepted), subjects...)
	names := []string{examplePoints}
	for _, u := range users {
		names = append(names, u.Name)
	}
	for _, name := range names {
		file, err := secretFile(s.home, "nats_"+name, rand.Text)
		if err != nil {
			return broker{}, err
		}
		password, err := os.ReadFile(file)
		if err != nil {
			return broker{}, err
		}
		b.files[name], b.passwords[name] = file, strings.TrimSpace(string(password))
	}
	listener, err := listenOnSavedPort(ctx, s.home, "nats", out)
	if err != nil {
		return broker{}, err
	}
	if err := listener.Close(); err != nil { // nats-server opens the port itself
		return broker{}, err
	}
	server, err := natsserver.Start(ctx, natsserver.Options{
		Dir: filepath.Join(s.home, "nats"), Port: portOf(listener), Config: natsLimits + bus.PasswordConfig(b.passwords) + bus.ServerConfig(users, bus.ReceiverConfig(examplePoints)),
	})
	if err != nil {
		return broker{}, err
	}
	b.url, b.stop = server.URL(), server.Stop
	printStep(out, "nats", b.url+", users and passwords in "+filepath.Join(s.home, "secrets"))
	return b, nil
}

// withLogin returns env with the credentials of a NATS user instead of those in env. If NATS_URL is set, it returns env
// unchanged.
func (b broker) withLogin(user string, env []string) []string {
	if b.files == nil {
		return env
	}
	env = slices.DeleteFunc(slices.Clone(env), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains([]string{"NATS_USER", "NATS_PASSWORD", "NATS_PASSWORD_FILE", "NATS_CREDENTIALS", "NATS_INBOX_PREFIX"}, name)
	})
	return append(env, "NATS_USER="+user, "NATS_PASSWORD_FILE="+b.files[user])
}

// runEnv returns the lines of run.env about NATS: the URL with the login of the operator, and for `make example` the URL
// with the login of its points service, and the JetStream domain. If NATS_URL is set, there is only this URL.
func (b broker) runEnv() string {
	if b.files == nil {
		return "NATS_URL=" + b.url + "\n"
	}
	return "NATS_URL=" + b.urlOf(bus.UserOperator) + "\nNATS_POINTS_URL=" + b.urlOf(examplePoints) + "\nNATS_DOMAIN=" + bus.Domain + "\n"
}

// urlOf returns the URL with the credentials of a NATS user.
func (b broker) urlOf(user string) string {
	return strings.Replace(b.url, "://", "://"+url.UserPassword(user, b.passwords[user]).String()+"@", 1)
}
