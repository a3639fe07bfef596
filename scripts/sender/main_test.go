package main

import (
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sender"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

func envOf(pairs map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, found := pairs[name]
		return value, found
	}
}

var passwordEnv = envOf(map[string]string{"SENDONCE_PASSWORD": "p"})

func TestOnlyPasswordIsRequired(t *testing.T) {
	t.Parallel()
	_, err := newSender(nil, passwordEnv, io.Discard)
	require.NoError(t, err)
	_, err = newSender(nil, envOf(nil), io.Discard)
	require.ErrorContains(t, err, "set SENDONCE_PASSWORD", "there is no default password")
}

func TestFlagsOfEachGateway(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"-gateway console -rate 0.5 -concurrency 300 -lease 10s",
		"-gateway http -http-url http://x/{{.PhoneNumber}} -http-method GET -http-header A:b -http-header C:d -http-outcome 404=ok,5xx=failed -http-ok a.b=0",
		"-gateway flaky -flaky failed=0.5,hang=0.5 -flaky-script ok,panic -flaky-seed 7",
	} {
		_, err := newSender(strings.Fields(line), passwordEnv, io.Discard)
		require.NoError(t, err, line)
	}
}

func TestParseFlags(t *testing.T) {
	t.Parallel()
	var o options
	f := newFlags(&o)
	bad, help := parseFlags(f, []string{"-http-header", "X-Time: 10:00", "-http-ok", "code=a=b", "-http-outcome", "404=failed, unreachable=released", "-flaky", "hang=0.25"})
	require.Empty(t, bad)
	require.False(t, help)
	require.Equal(t, map[string]string{"X-Time": "10:00"}, o.http.Header)
	require.Equal(t, "code", o.http.OKField)
	require.Equal(t, "a=b", o.http.OKValue)
	require.Equal(t, map[string]sender.Outcome{"404": sender.Failed, "unreachable": sender.Released}, o.http.Outcomes)
	require.Equal(t, map[string]float64{"hang": 0.25}, o.flaky.Shares)
}

func TestReadEnv(t *testing.T) {
	t.Parallel()
	var o options
	f := newFlags(&o)
	_, _ = parseFlags(f, []string{"-app", "mine"})
	bad := readEnv(f, envOf(map[string]string{
		"SENDONCE_URL": "https://s", "SENDONCE_USER": "u", "SENDONCE_PASSWORD": "p",
		"SENDER_APP": "theirs", "SENDER_LEASE": "20s", "SENDER_QUEUE": "", "SENDER_HTTP_HEADER": "A: b\nC: d",
	}))
	require.Empty(t, bad)
	require.Equal(t, []string{"https://s", "u", "p", "mine", "default"}, []string{o.url, o.user, o.password, o.config.AppID, o.config.Queue})
	require.Equal(t, 20*time.Second, o.config.Lease)
	require.Equal(t, map[string]string{"A": "b", "C": "d"}, o.http.Header)
}

func TestFlagsOfOtherGatewayAreRejected(t *testing.T) {
	t.Parallel()
	_, err := newSender([]string{"-http-url", "http://x/"}, envOf(map[string]string{"SENDER_FLAKY_SEED": "7"}), io.Discard)
	require.ErrorContains(t, err, "-http-url is for -gateway http")
	require.ErrorContains(t, err, "-flaky-seed is for -gateway flaky")
}

func TestUsage(t *testing.T) {
	t.Parallel()
	_, err := newSender([]string{"-rate", "x", "-h"}, envOf(nil), io.Discard)
	require.True(t, errors.Is(err, flag.ErrHelp))
	newFlags(&options{}).VisitAll(func(f *flag.Flag) { require.Contains(t, usage(), "\n  -"+f.Name+" ") })
}

func TestBadFlagsAreAllReported(t *testing.T) {
	t.Parallel()
	bin := sandbox.Build(t, "github.com/sendonce/sendonce/scripts/sender")
	p := sandbox.StartProcess(t, bin, []string{"SENDER_TIMEOUT=soon"}, "-typo", "-rate", "-1", "-concurrency", "many", "-gateway", "http",
		"-http-url", "ftp://x", "-http-outcome", "9xx=ok", "-lease", "5s", "-url", "here", "-app", " ", "stray", "-http-ok", "code")
	select {
	case <-p.Exited():
	case <-time.After(20 * time.Second):
		t.Fatal("still running\n" + p.Output())
	}
	require.Equal(t, 2, p.ExitCode(), p.Output())
	for _, part := range []string{
		"-typo", "-rate", "-concurrency", "the URL must be", `"9xx"`, "lease", "-url", "app id", `"stray"`, "-http-ok", "SENDER_TIMEOUT",
	} {
		require.Contains(t, p.Output(), part)
	}
}
