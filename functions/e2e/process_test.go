package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
)

// settings of a real process on the given database, listening on a free port.
func settings(url string, more ...string) []string {
	return slices.Concat(sandbox.RolesEnv(), []string{"DATABASE_URL=" + url, "BASIC_AUTH_PASSWORD=secret", "SENDONCE_ENCRYPTION_KEYS=" + sandbox.EncryptionKey, "APP_HOST=127.0.0.1", "PORT=0", "SENDONCE_METRICS=open"}, more)
}

// address is where a process says that it listens.
func address(t *testing.T, p *sandbox.Process) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, p.WaitFor(ctx, `"listening"`), p.Output())
	for line := range strings.Lines(p.Output()) {
		var entry struct{ Msg, Address string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "listening" {
			return "http://" + entry.Address
		}
	}
	t.Fatal("no address in\n" + p.Output())
	return ""
}

// exited waits until a process has ended by itself.
func exited(t *testing.T, p *sandbox.Process) {
	t.Helper()
	select {
	case <-p.Exited():
	case <-time.After(20 * time.Second):
		t.Fatal("still running\n" + p.Output())
	}
}

func TestFunctionTargetPicksOneFunction(t *testing.T) {
	t.Parallel()
	url, bin := sandbox.NewDatabase(t), binary(t)
	one := &server{t: t, url: address(t, startProcess(t, bin, settings(url, "FUNCTION_TARGET=submit"))), user: "admin", password: "secret"}
	require.Equal(t, 200, one.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`).status)
	require.Equal(t, 404, one.get("/api/v1/sms/tasks/pending?app_id=a").status)

	typo := startProcess(t, bin, settings(url, "FUNCTION_TARGET=submitt"))
	exited(t, typo)
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
	got, err := exec.CommandContext(t.Context(), binary(t), "version").Output()
	require.NoError(t, err)
	require.Equal(t, fn.Release+"+"+string(commit[1])+"\n", string(got))
}

func TestWrongSettingsStopTheStartAndAreAllNamed(t *testing.T) {
	t.Parallel()
	bin := binary(t)
	p := startProcess(t, bin, []string{"DEBUG=perhaps", "MAX_RETRY_COUNT=11", "SENDONCE_TYPO=1", "APP_PORT=x"})
	exited(t, p)
	require.NotZero(t, p.ExitCode())
	for _, name := range []string{"DEBUG", "MAX_RETRY_COUNT", "SENDONCE_TYPO", "APP_PORT"} {
		require.Contains(t, p.Output(), name)
	}
	empty := startProcess(t, bin, []string{"DATABASE_URL=postgres://u@127.0.0.1:1/x", "BASIC_AUTH_PASSWORD="})
	exited(t, empty)
	require.NotZero(t, empty.ExitCode())
	require.Contains(t, empty.Output(), "BASIC_AUTH_PASSWORD")
}

func TestAProcessStartsWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	bin := binary(t)
	s := &server{t: t, user: "admin", password: "secret",
		url: address(t, startProcess(t, bin, settings("postgres://nobody@127.0.0.1:1/none")))}
	require.Equal(t, 200, s.get("/healthz").status)
	require.Equal(t, 503, s.get("/readyz").status)
	away := s.post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`)
	require.Equal(t, 503, away.status)
	require.Equal(t, "server_busy", away.body["error"])
	require.NotEmpty(t, away.header.Get("Retry-After"))
}

// Processes are killed at random while clients submit with keys and repeat
// what they got no answer to. The ledger of answers must equal the rows.
func TestNoAnswerIsTakenBackWhenProcessesAreKilled(t *testing.T) {
	t.Parallel()
	url, bin := sandbox.NewDatabase(t), binary(t)
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

	owner := (&server{t: t}).connect(url)
	require.Equal(t, clients*calls, owner.count(`select count(*) from tasks`))
	require.Equal(t, clients*calls, owner.count(`select count(*) from submission_keys k join tasks t on t.id = k.id join task_live l on l.id = k.id`))
	for _, page := range ledger {
		require.Len(t, page, calls)
		for key, id := range page {
			require.Equal(t, 1, owner.count(`select count(*) from tasks where id = $1 and content = $2`, id, key), key)
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
		v.processes[i] = startProcess(t, bin, settings(url))
		v.addresses[i] = address(t, v.processes[i])
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
	fresh := startProcess(v.t, v.bin, settings(v.url))
	at := address(v.t, fresh)
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
