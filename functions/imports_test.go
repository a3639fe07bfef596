package functions

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/sendonce/sendonce/"

// layers lists what packages may import: packages of this module (ours) and of other modules (outside; their
// subpackages too). A key, or a package of ours, that ends with / is a prefix. The layer of a package is the longest
// key that matches it. Imports point one way: functions -> fn -> store -> task and message.
var layers = map[string]struct{ ours, outside []string }{
	"functions": {
		ours:    []string{"functions/", "shared/command", "shared/fn", "shared/bus", "shared/settings", "shared/trigger", "shared/task", "migrations"},
		outside: []string{"github.com/jackc/pgx/v5"}, // one connection, for the command migrate
	},
	"functions/sendonce": {ours: []string{"functions", "shared/command"}},
	"functions/framework": {
		ours:    []string{"functions", "shared/fn"},
		outside: []string{"github.com/GoogleCloudPlatform/functions-framework-go"},
	},
	"functions/internal/cluster": { // only for tests
		ours:    []string{"functions", "shared/"},
		outside: []string{"github.com/cloudevents/sdk-go/v2", "github.com/jackc/pgx/v5", "github.com/nats-io/nats.go", "github.com/stretchr/testify"},
	},
	"functions/internal/contract": { // only for tests
		ours:    []string{"shared/api"},
		outside: []string{"github.com/santhosh-tekuri/jsonschema/v6", "github.com/stretchr/testify", "go.yaml.in/yaml/v4"},
	},
	"functions/": {
		ours: []string{"shared/fn", "shared/intake", "shared/store", "shared/store/", "shared/bus", "shared/task", "shared/message", "shared/api",
			"shared/cache", "shared/config", "shared/decode", "shared/loglimit", "shared/metrics", "shared/outgoing", "shared/retry", "shared/robot", "shared/settings", "shared/streamevent", "shared/telemetry", "shared/text"},
		outside: []string{"github.com/cloudevents/sdk-go/v2"},
	},
	"functions/console": {ours: []string{"shared/decode", "functions/console/apidocs", "shared/fn", "shared/api", "shared/task", "shared/text"}}, // it calls the API
	"functions/console/apidocs": {
		ours:    []string{"shared/fn", "shared/api"},
		outside: []string{"github.com/swaggest/swgui/v5/static", "go.yaml.in/yaml/v4"},
	},
	"shared/command":        {ours: []string{"shared/auth", "shared/fn", "shared/config"}},
	"shared/intake":         {ours: []string{"shared/intake/request", "shared/fn", "shared/cache", "shared/decode", "shared/settings", "shared/streamevent", "shared/store", "shared/store/", "shared/bus", "shared/task", "shared/message", "shared/api"}},
	"shared/intake/request": {ours: []string{"shared/api", "shared/decode", "shared/message", "shared/task"}},
	"shared/auth":           {ours: []string{"shared/loglimit", "shared/store/callers", "shared/task"}},
	"shared/auth/authtest": { // only for tests
		ours: []string{"shared/store/callers", "shared/task"},
	},
	"shared/fn": {
		ours: []string{"shared/auth", "shared/store", "shared/store/", "shared/bus", "shared/trigger", "shared/task", "shared/message", "shared/api", "shared/cache", "shared/config", "shared/decode", "shared/httpserver", "shared/loglimit", "shared/metrics", "shared/retry", "shared/settings", "shared/streamevent", "shared/telemetry", "shared/text", "shared/waiters"},
		outside: []string{
			"github.com/GoogleCloudPlatform/functions-framework-go", "github.com/cloudevents/sdk-go/v2", "github.com/coder/websocket",
			"golang.org/x/sync/semaphore", // pgx links it too
		},
	},
	// The store of a subject imports shared/store and the stores of the subjects that it builds on.
	"shared/store":             {ours: []string{"shared/task", "shared/message"}, outside: []string{"github.com/jackc/pgx/v5"}},
	"shared/store/admin":       {ours: []string{"shared/store", "shared/task"}, outside: []string{"github.com/jackc/pgx/v5", "golang.org/x/text"}},
	"shared/store/alerts":      {ours: []string{"shared/store", "shared/task"}, outside: []string{"github.com/jackc/pgx/v5"}},
	"shared/store/callers":     {ours: []string{"shared/store", "shared/task"}, outside: []string{"github.com/jackc/pgx/v5"}},
	"shared/store/quota":       {ours: []string{"shared/task"}},
	"shared/store/messages":    {ours: []string{"shared/store", "shared/store/callers", "shared/store/quota", "shared/task", "shared/message"}, outside: []string{"github.com/jackc/pgx/v5"}},
	"shared/store/tasks":       {ours: []string{"shared/store", "shared/store/callers", "shared/store/quota", "shared/task"}, outside: []string{"github.com/jackc/pgx/v5"}},
	"shared/store/subscribe":   {ours: []string{"shared/store", "shared/store/callers", "shared/store/tasks", "shared/task"}, outside: []string{"github.com/jackc/pgx/v5"}},
	"shared/store/webhooks":    {ours: []string{"shared/store", "shared/store/messages", "shared/task", "shared/message"}, outside: []string{"github.com/jackc/pgx/v5"}},
	"shared/store/events":      {ours: []string{"shared/store", "shared/store/alerts", "shared/store/messages", "shared/store/tasks", "shared/task", "shared/message"}, outside: []string{"github.com/jackc/pgx/v5"}},
	"shared/store/maintenance": {ours: []string{"shared/store", "shared/store/", "shared/task"}, outside: []string{"github.com/jackc/pgx/v5"}},
	"shared/store/overview":    {ours: []string{"shared/message", "shared/store", "shared/store/tasks", "shared/store/webhooks", "shared/task"}, outside: []string{"github.com/jackc/pgx/v5"}},
	"shared/store/stores":      {ours: []string{"shared/store", "shared/store/", "shared/task"}},
	"shared/store/storetest":   {ours: []string{"shared/"}, outside: []string{"github.com/jackc/pgx/v5", "github.com/stretchr/testify"}},

	"shared/config":      {ours: []string{"shared/task"}, outside: []string{"github.com/kelseyhightower/envconfig"}},
	"shared/decode":      {ours: []string{"shared/config", "shared/outgoing", "shared/task", "shared/message", "shared/text"}},
	"shared/outgoing":    {ours: []string{"shared/config"}},
	"shared/cache":       {},
	"shared/httpserver":  {},
	"shared/loglimit":    {},
	"shared/metrics":     {},
	"shared/retry":       {},
	"shared/robot":       {ours: []string{"shared/api", "shared/message", "shared/task", "shared/text"}},
	"shared/settings":    {ours: []string{"shared/api", "shared/bus", "shared/config", "shared/decode", "shared/store", "shared/task"}},
	"shared/text":        {},
	"shared/waiters":     {},
	"shared/streamevent": {ours: []string{"shared/bus", "shared/message", "shared/store/messages", "shared/task"}, outside: []string{"github.com/cloudevents/sdk-go/v2"}},
	"shared/telemetry":   {ours: []string{"shared/cache", "shared/httpserver", "shared/loglimit", "shared/metrics"}},
	"shared/task":        {},
	"shared/message":     {},
	"shared/api":         {ours: []string{"shared/retry"}, outside: []string{"github.com/coder/websocket"}},
	"shared/inbox":       {ours: []string{"shared/retry"}, outside: []string{"github.com/jackc/pgx/v5", "github.com/cloudevents/sdk-go/v2"}},
	"shared/outbox":      {ours: []string{"shared/api", "shared/decode", "shared/intake/request", "shared/retry"}, outside: []string{"github.com/jackc/pgx/v5"}},
	"shared/sender":      {ours: []string{"shared/api", "shared/retry", "shared/text"}},
	"shared/sender/":     {ours: []string{"shared/sender"}},
	"shared/bus":         {ours: []string{"shared/loglimit", "shared/task"}, outside: []string{"github.com/nats-io/nats.go", "github.com/cloudevents/sdk-go/v2"}},
	"shared/bus/bustest": {ours: []string{"shared/sandbox", "shared/sandbox/natsserver"}, outside: []string{"github.com/nats-io/nats.go", "github.com/cloudevents/sdk-go/v2", "github.com/stretchr/testify"}},
	// Besides bus the only package of the service that imports nats.go: consumers and their messages have no wrapper.
	"shared/trigger": {ours: []string{"shared/bus", "shared/metrics", "shared/retry", "shared/settings", "shared/streamevent", "shared/telemetry", "shared/text"}, outside: []string{"github.com/nats-io/nats.go", "github.com/cloudevents/sdk-go/v2"}},
	"shared/sandbox": {ours: []string{"migrations", "shared/httpserver"}, outside: []string{"github.com/jackc/pgx/v5", "github.com/fergusstrange/embedded-postgres"}},
	"deploy":         {}, // has only tests
	"migrations":     {outside: []string{"github.com/jackc/pgx/v5"}},
	"scripts/": {
		ours: []string{"functions", "scripts/bench", "shared/api", "shared/bus", "shared/command", "shared/config", "shared/httpserver", "shared/inbox", "shared/loglimit", "shared/outbox", "shared/sandbox", "shared/sandbox/load", "shared/sandbox/natsserver", "shared/sender", "shared/task", "shared/text"},
		outside: []string{"github.com/jackc/pgx/v5", "github.com/joho/godotenv", "github.com/nats-io/nats.go", "github.com/valyala/fasthttp", "go.yaml.in/yaml/v4",
			"golang.org/x/sync/errgroup"},
	},
	"shared/sandbox/load":       {outside: []string{"github.com/jackc/pgx/v5"}},
	"shared/sandbox/natsserver": {ours: []string{"shared/sandbox"}, outside: []string{"github.com/nats-io/nats-server/v2"}},
}

// testsOnly may be imported only by tests, by scripts and by each other.
var testsOnly = []string{module + "shared/sandbox", module + "shared/sandbox/load", module + "shared/sandbox/natsserver", module + "functions/internal/cluster", module + "functions/internal/contract", module + "shared/auth/authtest", module + "shared/store/storetest", module + "shared/bus/bustest", "github.com/stretchr/testify"}

func TestImportsPointOneWay(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`, module+"...").CombinedOutput()
	require.NoError(t, err, string(out))
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		pkg := strings.TrimPrefix(fields[0], module)
		layer := layerOf(pkg)
		require.NotEmpty(t, layer, "add %s to layers with what it may import", pkg)
		seen[layer] = true
		for _, imported := range fields[1:] {
			require.True(t, allowed(layer, pkg, imported), "%s must not import %s", pkg, imported)
		}
	}
	for layer := range layers {
		require.True(t, seen[layer], "no package is left in %s: remove it from layers", layer)
	}
}

func layerOf(pkg string) string {
	best := ""
	for layer := range layers {
		if matches(layer, pkg) && len(layer) > len(best) {
			best = layer
		}
	}
	return best
}

func allowed(layer, pkg, imported string) bool {
	if ours, ok := strings.CutPrefix(imported, module); ok {
		if slices.Contains(testsOnly, imported) && !strings.HasPrefix(pkg, "scripts/") && !slices.Contains(testsOnly, module+pkg) {
			return false
		}
		return slices.ContainsFunc(layers[layer].ours, func(p string) bool { return matches(p, ours) })
	}
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		return true // the standard library
	}
	return slices.ContainsFunc(layers[layer].outside, func(p string) bool { return imported == p || strings.HasPrefix(imported, p+"/") })
}

func matches(prefix, pkg string) bool {
	return pkg == prefix || strings.HasSuffix(prefix, "/") && strings.HasPrefix(pkg, prefix)
}

func TestBinaryLinksNoTestCode(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", module+"functions/sendonce").CombinedOutput()
	require.NoError(t, err, string(out))
	deps := strings.Fields(string(out))
	for _, banned := range append(slices.Clone(testsOnly), "github.com/GoogleCloudPlatform/functions-framework-go/funcframework") {
		require.False(t, slices.ContainsFunc(deps, func(d string) bool { return d == banned || strings.HasPrefix(d, banned+"/") }), banned)
	}
}
