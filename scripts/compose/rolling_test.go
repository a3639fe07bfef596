package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain lets this program start itself again inside.
func TestMain(m *testing.M) {
	if isInside() {
		os.Exit(inside())
	}
	os.Exit(m.Run())
}

func TestServicesOfComposeAreReplacedUnderLoadAndNothingIsLost(t *testing.T) {
	t.Parallel()
	if err := haveTools(); err != nil {
		t.Skip(err)
	}
	require.NoError(t, runProcesses(t.Context(), "../..", rollingPlan{Rounds: 1, Short: true}))
}

func TestComposeIsReadAsComposeReadsIt(t *testing.T) {
	t.Parallel()
	file, err := readCompose("../../deploy/compose", "split")
	require.NoError(t, err)
	require.Contains(t, file.names(), "gateway")
	require.NotContains(t, file.names(), "sendonce", "which is of the other profile")
	require.NotContains(t, file.functions(), "trigger")
	submit := file.Services["submit"]
	require.Equal(t, "submit", submit.Environment["FUNCTION_TARGET"])
	require.Equal(t, "nats://nats:4222", submit.Environment["NATS_URL"], "merged from two places")
	require.Equal(t, 30*time.Second, submit.Grace)
	require.Equal(t, defaultGrace, file.Services["gateway"].Grace)
	require.Equal(t, []string{"/sendonce", "health"}, submit.probe())
	require.Nil(t, file.Services["migrate"].probe())
	require.Equal(t, words{"migrate"}, file.Services["migrate"].Command, "a list")
	require.Equal(t, words{"postgres", "-c", "max_connections=300"}, file.Services["postgres"].Command[:3], "a line")
	require.Equal(t, "service_healthy", file.Services["migrate"].DependsOn["postgres"].Condition)
	files := file.files(nil)
	require.Equal(t, "/etc/caddy/Caddyfile", files["./Caddyfile"])
	require.Equal(t, "/run/secrets/nats_submit", files["./secrets/nats_submit"])
	require.NotContains(t, files, "nats", "a volume is no file")
}

func TestEachServiceStartsWithItsOwnSettings(t *testing.T) {
	t.Parallel()
	file, err := readCompose("../../deploy/compose", "split")
	require.NoError(t, err)
	p := &processes{dir: "/stack", file: file, env: []string{"PATH=/bin", "HOME=/tmp", "TASK_EVENTS=all"}}
	submit, err := p.command(t.Context(), "submit", nil)
	require.NoError(t, err)
	require.Equal(t, []string{"/sendonce"}, submit.Args)
	require.Contains(t, submit.Env, "TASK_EVENTS=all")
	require.Contains(t, submit.Env, "APP_HOST=submit")
	nats, err := p.command(t.Context(), "nats", nil)
	require.NoError(t, err)
	require.Equal(t, []string{"/nats-server", "-c", "/etc/nats/nats.conf"}, nats.Args)
	require.NotContains(t, nats.Env, "TASK_EVENTS=all", "it has no env_file")
	gateway, err := p.command(t.Context(), "gateway", nil)
	require.NoError(t, err)
	require.Equal(t, "/caddy", gateway.Args[0])
	check, err := p.command(t.Context(), "submit", file.Services["submit"].probe())
	require.NoError(t, err)
	require.Equal(t, []string{"/sendonce", "health"}, check.Args)

	file.Services["other"] = service{Image: "somebody/else:1"}
	_, err = p.command(t.Context(), "other", nil)
	require.ErrorContains(t, err, "somebody/else:1")
}
