package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
)

func TestFunctionTargetPicksOneFunction(t *testing.T) {
	t.Parallel()
	url, bin := sandbox.NewDatabase(t), cluster.Binary(t)
	one := cluster.NewClient(t, cluster.Address(t, cluster.StartProcess(t, bin, cluster.Settings(url, "FUNCTION_TARGET=submit"))))
	require.Equal(t, 200, one.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`).Status)
	require.Equal(t, 404, one.Get("/api/v1/sms/tasks/pending?app_id=a").Status)

	typo := cluster.StartProcess(t, bin, cluster.Settings(url, "FUNCTION_TARGET=submitt"))
	cluster.WaitExit(t, typo)
	require.NotZero(t, typo.ExitCode())
	require.Contains(t, typo.Output(), `"submitt" names no function; there are: `)
	require.Contains(t, typo.Output(), "sweep")
}

// `make run` and the tests compile as binary does.
func TestAllBuildsReportTheVersionOfMakeBuild(t *testing.T) {
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

func TestWrongSettingsAreAllNamed(t *testing.T) {
	t.Parallel()
	bin := cluster.Binary(t)
	p := cluster.StartProcess(t, bin, []string{"DEBUG=perhaps", "MAX_RETRY_COUNT=11", "SENDONCE_TYPO=1", "APP_PORT=x"})
	cluster.WaitExit(t, p)
	require.NotZero(t, p.ExitCode())
	for _, name := range []string{"DEBUG", "MAX_RETRY_COUNT", "SENDONCE_TYPO", "APP_PORT"} {
		require.Contains(t, p.Output(), name)
	}
	empty := cluster.StartProcess(t, bin, []string{"DATABASE_URL=postgres://u@127.0.0.1:1/x", "BASIC_AUTH_PASSWORD="})
	cluster.WaitExit(t, empty)
	require.NotZero(t, empty.ExitCode())
	require.Contains(t, empty.Output(), "BASIC_AUTH_PASSWORD")
}

func TestProcessStartsWithoutDatabase(t *testing.T) {
	t.Parallel()
	bin := cluster.Binary(t)
	s := cluster.NewClient(t, cluster.Address(t, cluster.StartProcess(t, bin, cluster.Settings("postgres://nobody@127.0.0.1:1/none"))))
	require.Equal(t, 200, s.Get("/healthz").Status)
	require.Equal(t, 503, s.Get("/readyz").Status)
	away := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`)
	require.Equal(t, 503, away.Status)
	require.Equal(t, "server_busy", away.Body["error"])
	require.NotEmpty(t, away.Header.Get("Retry-After"))
}

// Processes are killed at random while clients submit with keys and repeat
// what they got no answer to. The ledger of answers must equal the rows.
func TestKilledProcessesLoseNoAnsweredTask(t *testing.T) {
	t.Parallel()
	url, bin := sandbox.NewDatabase(t), cluster.Binary(t)
	const clients, calls, kills = 4, 60, 5
	victims := newVictims(t, bin, url)
	ledger := make([]map[string]string, clients)
	var all sync.WaitGroup
	for n := range clients {
		ledger[n] = map[string]string{}
		all.Go(func() {
			for i := range calls {
				key := fmt.Sprintf("client-%d-call-%d", n, i)
				ledger[n][key] = victims.submit(t.Context(), n+i, key)
			}
		})
	}
	for range kills {
		victims.killOne()
	}
	all.Wait()

	owner := cluster.NewClient(t, "").Connect(url)
	require.Equal(t, clients*calls, owner.Count(`select count(*) from tasks`))
	require.Equal(t, clients*calls, owner.Count(`select count(*) from submission_keys k join tasks t on t.id = k.id join task_live l on l.id = k.id`))
	for _, page := range ledger {
		require.Len(t, page, calls)
		for key, id := range page {
			require.Equal(t, 1, owner.Count(`select count(*) from tasks where id = $1 and content = $2`, id, key), key)
		}
	}
}

// victims are two processes on one database, of which one at a time dies.
type victims struct {
	t         *testing.T
	bin, url  string
	mu        sync.Mutex
	processes [2]*sandbox.Process
	addresses [2]string
	answered  int
	progress  *sync.Cond
	next      int
}

func newVictims(t *testing.T, bin, url string) *victims {
	v := &victims{t: t, bin: bin, url: url}
	v.progress = sync.NewCond(&v.mu)
	for i := range v.processes {
		v.processes[i] = cluster.StartProcess(t, bin, cluster.Settings(url))
		v.addresses[i] = cluster.Address(t, v.processes[i])
	}
	return v
}

// killOne waits until calls were answered since the last kill, kills a process
// in the middle of the others and puts a new one in its place.
func (v *victims) killOne() {
	v.mu.Lock()
	until := v.answered + 20
	for v.answered < until {
		v.progress.Wait()
	}
	i := v.next % 2
	v.next++
	dying := v.processes[i]
	v.mu.Unlock()
	require.NoError(v.t, dying.Kill())
	fresh := cluster.StartProcess(v.t, v.bin, cluster.Settings(v.url))
	at := cluster.Address(v.t, fresh)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.processes[i], v.addresses[i] = fresh, at
}

// submit repeats one call until it is answered, and gives the task's id; ""
// when ctx ended first.
func (v *victims) submit(ctx context.Context, n int, key string) string {
	for ; ctx.Err() == nil; n++ {
		v.mu.Lock()
		client := api.NewClient(v.addresses[n%2], "admin", "secret")
		v.mu.Unlock()
		client.Tries = 1
		task, err := client.Send(ctx, api.SendRequest{PhoneNumber: "13800138000", Content: key, IdempotencyKey: key})
		if err == nil {
			v.mu.Lock()
			v.answered++
			v.progress.Broadcast()
			v.mu.Unlock()
			return task.TaskID
		}
	}
	return ""
}
