package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/sandbox"
)

const examples = "../console/apidocs/examples/"

// The examples of the docs run against a system with all functions. Two examples use code that is generated from
// openapi.yaml: types in TypeScript, and a Go client in scripts/clients. They run only in `make clients`, which
// compiles them.
func TestExamplesOfTheDocs(t *testing.T) {
	sandbox.Slow(t)
	t.Parallel()
	c := cluster.New(t)
	c.StartAll()
	for language, example := range map[string]struct {
		program     []string
		interpreter string // of the program; "" = none
	}{
		"Python":           {[]string{"python3", examples + "example.py"}, "python3"},
		"curl":             {[]string{"sh", examples + "example.sh"}, "curl"},
		"Go":               {[]string{sandbox.Build(t, "github.com/sendonce/sendonce/functions/console/apidocs/examples")}, ""},
		"TypeScript":       {[]string{"node", os.Getenv("SENDONCE_TYPESCRIPT_CLIENT")}, "node"},
		"generated for Go": {[]string{os.Getenv("SENDONCE_GO_CLIENT")}, ""},
	} {
		t.Run(language, func(t *testing.T) {
			program := example.program
			if program[len(program)-1] == "" {
				t.Skip("make clients compiles this client")
			}
			if _, err := exec.LookPath(example.interpreter); example.interpreter != "" && err != nil {
				t.Skip(example.interpreter + " is not installed")
			}
			printed := runExample(t, c, program...)
			require.Contains(t, printed, "succeeded", printed)
			if language != "Go" { // the verification in Go has tests of its own
				require.Regexp(t, `verified (True|true)( False| false|\nand not when changed)`, printed)
			}
		})
	}
	require.Zero(t, c.Admin.Count(`select count(*) from task_live where queue not like 'wechat%'`), "each example reports its task")
	require.Zero(t, c.Admin.Count(`select count(*) from webhook_endpoints`), "each example deletes its endpoint")
}

// runExample runs a program with the address of the system and a signed webhook, and returns what it prints.
func runExample(t *testing.T, c *cluster.Cluster, program ...string) string {
	t.Helper()
	secret, body, h := api.NewWebhookSecret(), `{"type":"sendonce.task.succeeded.v1","data":{"result":"好"}}`, http.Header{}
	require.NoError(t, api.SignWebhook(h, "018c24d2-1", time.Now(), []byte(body), secret))
	cmd := exec.CommandContext(t.Context(), program[0], program[1:]...)
	cmd.Env = append(os.Environ(), "no_proxy=127.0.0.1", "SENDONCE_URL="+c.Client.BaseURL, "SENDONCE_USER="+c.Client.User, "SENDONCE_PASSWORD="+c.Client.Password,
		"WEBHOOK_SECRET="+secret, "WEBHOOK_BODY="+body)
	for name := range h {
		cmd.Env = append(cmd.Env, strings.ToUpper(strings.ReplaceAll(name, "-", "_"))+"="+h.Get(name))
	}
	printed, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", printed)
	return string(printed)
}
