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

// examplePoints is the receiver of `make example`.
const examplePoints = "points"

// natsLimits limits what clients without a password can use. NATS closes a connection that does not log in
// within 2 s, so that the clients of the run can connect even during a flood.
const natsLimits = "max_connections: 1024\nmax_subscriptions: 8192\n"

// broker is the NATS server of the run.
type broker struct {
	url    string            // without credentials, unless it is that of NATS_URL
	files  map[string]string // the path of the password by user; nil = the URL has the password
	server interface{ Stop() error }
}

// startNATS returns the server of NATS_URL, or starts a server with the users of a deployment. Later
// runs use the same random passwords.
func startNATS(ctx context.Context, s settings, out io.Writer) (broker, error) {
	if natsURL := s.all["NATS_URL"]; natsURL != "" {
		printStep(out, "nats", "at NATS_URL")
		return broker{url: natsURL, server: externalServer{}}, nil
	}
	b := broker{files: map[string]string{}}
	subjects := strings.FieldsFunc(s.all["NATS_SUBJECTS"], func(c rune) bool { return c == ',' || c == ' ' })
	for _, subject := range subjects {
		if err := bus.CheckSubject(subject); err != nil {
			return broker{}, fmt.Errorf("NATS_SUBJECTS: %w", err)
		}
	}
	users := bus.Users(cmp.Or(s.all["TWO_PHASE_STREAM"], bus.StreamAccepted), subjects...)
	passwords := map[string]string{}
	for _, name := range append(names(users), examplePoints) {
		file, err := secretFile(s.home, "nats_"+name, rand.Text)
		if err != nil {
			return broker{}, err
		}
		password, err := os.ReadFile(file)
		if err != nil {
			return broker{}, err
		}
		b.files[name], passwords[name] = file, strings.TrimSpace(string(password))
	}
	listener, err := listenOnSavedPort(ctx, s.home, "nats", out)
	if err != nil {
		return broker{}, err
	}
	if err := listener.Close(); err != nil { // nats-server opens the port itself
		return broker{}, err
	}
	server, err := natsserver.Start(ctx, natsserver.Options{
		Dir: filepath.Join(s.home, "nats"), Port: portOf(listener), Config: natsLimits + bus.PasswordConfig(passwords) + bus.ServerConfig(users, bus.ReceiverConfig(examplePoints)),
	})
	if err != nil {
		return broker{}, err
	}
	b.url, b.server = server.URL(), server
	printStep(out, "nats", b.url+", users and passwords in "+filepath.Join(s.home, "secrets"))
	return b, nil
}

func names(users []bus.User) []string {
	all := make([]string, len(users))
	for i, u := range users {
		all[i] = u.Name
	}
	return all
}

// login returns env with the credentials of a user.
func (b broker) login(user string, env []string) []string {
	if b.files == nil {
		return env
	}
	env = slices.DeleteFunc(slices.Clone(env), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains([]string{"NATS_USER", "NATS_PASSWORD", "NATS_PASSWORD_FILE", "NATS_CREDENTIALS", "NATS_INBOX_PREFIX"}, name)
	})
	return append(env, "NATS_USER="+user, "NATS_PASSWORD_FILE="+b.files[user])
}

// runEnv returns the lines of run.env about NATS: the URL of the operator, and the URL and
// the JetStream domain of the receiver of `make example`.
func (b broker) runEnv() (string, error) {
	if b.files == nil {
		return "NATS_URL=" + b.url + "\n", nil
	}
	operator, err := b.urlOf(bus.UserOperator)
	if err != nil {
		return "", err
	}
	points, err := b.urlOf(examplePoints)
	if err != nil {
		return "", err
	}
	return "NATS_URL=" + operator + "\nNATS_POINTS_URL=" + points + "\nNATS_DOMAIN=" + bus.Domain + "\n", nil
}

func (b broker) urlOf(user string) (string, error) {
	password, err := os.ReadFile(b.files[user])
	if err != nil {
		return "", err
	}
	u, err := url.Parse(b.url)
	if err != nil {
		return "", err
	}
	u.User = url.UserPassword(user, strings.TrimSpace(string(password)))
	return u.String(), nil
}

// externalServer is a server that this run did not start.
type externalServer struct{}

func (externalServer) Stop() error { return nil }
