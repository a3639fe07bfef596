package e2e

import (
	"os/exec"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/sandbox/load"
)

func TestClaimHasDefaultLimitAndLease(t *testing.T) {
	t.Parallel()
	s, _ := cluster.StartServer(t, sandbox.NewDatabase(t), "PROCESSING_TIMEOUT_MINUTES=7")
	s.Post(cluster.SMSPath+"send/batch", cluster.KeyedBatch(1, 11, "")).RequireOK()
	claimed := s.Get(cluster.SMSPath + "tasks/pending?app_id=a").List()
	require.Len(t, claimed, 10)
	lease, err := time.Parse(time.RFC3339, claimed[0]["lease_until"].(string))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(7*time.Minute), lease, 30*time.Second)
}

// `make run` and all tests build their binary in the same way as cluster.Binary, so the test checks only this one.
func TestBinaryReportsTheVersionOfMakeBuild(t *testing.T) {
	t.Parallel()
	recipe := exec.CommandContext(t.Context(), "make", "-n", "build")
	recipe.Dir = "../.."
	text, err := recipe.CombinedOutput()
	require.NoError(t, err, string(text))
	commit := regexp.MustCompile(`fn\.commit=([^']+)'`).FindSubmatch(text)
	require.NotNil(t, commit, string(text))
	got, err := exec.CommandContext(t.Context(), cluster.Binary(t), "version").Output()
	require.NoError(t, err)
	require.Equal(t, fn.Release+"+"+string(commit[1])+"\n", string(got))
}

// Two processes are killed alternately while clients submit. A submission without a response is repeated with its key.
func TestKilledProcessesLoseNoSubmittedTask(t *testing.T) {
	t.Parallel()
	url := sandbox.NewDatabase(t)
	var mu sync.Mutex
	var processes [2]*sandbox.Process
	var addresses [2]string
	start := func(i int) {
		s, p := cluster.StartServer(t, url)
		mu.Lock()
		defer mu.Unlock()
		processes[i], addresses[i] = p, s.URL
	}
	start(0)
	start(1)
	g, l := load.New(t.Context()), load.NewLedger()
	t.Cleanup(g.Stop)
	for n := range 4 {
		g.Start("submit", time.Millisecond, submitCall(func() *api.Client {
			mu.Lock()
			defer mu.Unlock()
			n++
			client := api.NewClient(addresses[n%2], "admin", "secret")
			client.Tries = 1
			return client
		}, l))
	}
	for kill := range 5 {
		waitSucceeded(t, g, 20)
		require.NoError(t, processes[kill%2].Kill())
		start(kill % 2)
	}
	g.Stop()
	owner := cluster.NewClient(t, "").Connect(url)
	require.NoError(t, l.CheckTasks(t.Context(), owner.Owner))
	submitted, _, _ := l.Tasks()
	require.Equal(t, submitted, owner.Count(`select count(*) from submission_keys k join tasks t on t.id = k.id join task_live l on l.id = k.id`))
}
