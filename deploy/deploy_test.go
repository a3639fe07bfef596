// Package deploy tests the manifests: they must match the schemas of Compose and Kubernetes, and their functions,
// routes and secrets must be exactly those that the binary lists. Each setting in them must be one that the binary
// lists.
package deploy

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
)

var update = flag.Bool("update", false, "rewrite the generated files")

func TestMain(m *testing.M) { sandbox.Main(m) }

// object is a node of a YAML file.
type object = map[string]any

// binary is the built sendonce, with the functions, routes and settings that it prints.
type binary struct {
	path      string
	functions []string
	routes    []route
	settings  []setting
}

// route is a row of `sendonce routes`.
type route struct {
	function, method, path string
	roles                  []string
}

// setting is a row of `sendonce config`.
type setting struct {
	name, def, meaning string
	secret             bool
	readBy             []string // functions and commands; nil = all
}

var (
	describeMutex sync.Mutex
	described     *binary
)

// describeBinary builds and runs the binary once for all tests, which must not change the result.
func describeBinary(t *testing.T) binary {
	t.Helper()
	describeMutex.Lock()
	defer describeMutex.Unlock()
	if described == nil {
		bin := newBinary(t)
		described = &bin
	}
	return *described
}

func newBinary(t *testing.T) binary {
	t.Helper()
	bin := binary{path: sandbox.Build(t, "github.com/sendonce/sendonce/functions/sendonce")}
	for _, row := range bin.table(t, "routes") {
		method, path, _ := strings.Cut(row[1], " ")
		bin.routes = append(bin.routes, route{function: row[0], method: method, path: path, roles: strings.Split(row[2], ", ")})
		if !slices.Contains(bin.functions, row[0]) {
			bin.functions = append(bin.functions, row[0])
		}
	}
	bin.functions = append(bin.functions, "exporter") // `sendonce routes` leaves it out, because a gateway must not route to it
	for _, row := range bin.table(t, "config") {
		s := setting{name: row[0], def: row[1], meaning: row[2]}
		s.secret = strings.Contains(s.meaning, "`"+s.name+"_FILE`")
		if row[3] != "all" {
			s.readBy = strings.Split(row[3], ", ")
		}
		bin.settings = append(bin.settings, s)
	}
	require.Greater(t, len(bin.functions), 10)
	require.Greater(t, len(bin.settings), 40)
	// Without spare capacity, an append in a test does not change the slices of other tests.
	bin.functions, bin.routes, bin.settings = slices.Clip(bin.functions), slices.Clip(bin.routes), slices.Clip(bin.settings)
	return bin
}

// defaultOf returns the default of a setting.
func (bin binary) defaultOf(name string) string {
	return bin.settings[slices.IndexFunc(bin.settings, func(s setting) bool { return s.name == name })].def
}

// table returns the cells of the Markdown table that a command prints, unquoted.
func (bin binary) table(t *testing.T, command string) [][]string {
	t.Helper()
	out, err := bin.run(nil, command)
	require.NoError(t, err)
	var rows [][]string
	for line := range strings.Lines(out) {
		cells := regexp.MustCompile(` ?(?:^|[^\\])\| ?`).Split(strings.Trim(line, "|\n"), -1)
		for i, cell := range cells {
			cells[i] = strings.ReplaceAll(strings.TrimSpace(cell), `\|`, "|")
			if inner, ok := strings.CutPrefix(cells[i], "`"); ok && strings.Count(cells[i], "`") == 2 {
				cells[i] = strings.TrimSuffix(inner, "`")
			}
		}
		rows = append(rows, cells)
	}
	return rows[2:]
}

// run runs the binary with env as its whole environment and returns its output.
func (bin binary) run(env []string, args ...string) (string, error) {
	cmd := exec.Command(bin.path, args...)
	cmd.Env = append([]string{"PATH="}, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("sendonce %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// workload is a container that runs the binary: a service in compose, or a Service of Knative, a Deployment or a Job in
// Kubernetes.
type workload struct {
	name     string
	function string // "" = all, unless there is a command
	command  string
	env      map[string]string
	secrets  []string // the settings that come from secrets
}

// wrongUser returns an error text if a workload does not log in to NATS as its own user.
func (w workload) wrongUser() []string {
	want := cmp.Or(w.function, w.command, bus.UserAll)
	if w.command == "migrate" {
		want = ""
	}
	if got := w.env["NATS_USER"]; got != want {
		return []string{fmt.Sprintf("%s: is the user %s of NATS, not %s", w.name, got, want)}
	}
	return nil
}

// plainSecrets are secret settings that a manifest may contain: URLs, whose passwords are in other settings.
var plainSecrets = []string{"NATS_URL", "DATABASE_URL"}

// mismatches lists the functions, settings and secrets that workloads lack or should not have.
func mismatches(bin binary, workloads []workload) []string {
	var wrong []string
	found := map[string]int{}
	for _, w := range workloads {
		found[w.function+w.command]++
		wrong = append(wrong, w.mismatches(bin)...)
	}
	for _, name := range append([]string{"migrate", "trigger"}, bin.functions...) {
		if found[name] != 1 {
			wrong = append(wrong, fmt.Sprintf("%s: runs in %d workloads", name, found[name]))
		}
	}
	return wrong
}

// The functions get a hash of the admin's password; no workload gets the password.
const (
	adminPassword = "BASIC_AUTH_PASSWORD"
	adminHash     = "BASIC_AUTH_PASSWORD_HASH"
)

// mismatches lists the settings and secrets that one workload lacks or should not have.
func (w workload) mismatches(bin binary) []string {
	wrong := w.unknown(bin)
	if w.function != "" && !slices.Contains(bin.functions, w.function) {
		wrong = append(wrong, fmt.Sprintf("%s: there is no function %q", w.name, w.function))
	}
	for _, s := range bin.settings {
		switch has, needs := slices.Contains(w.secrets, s.name), w.needs(s); {
		case has && !needs:
			wrong = append(wrong, fmt.Sprintf("%s: has the secret %s and does not read it", w.name, s.name))
		case needs && !has:
			wrong = append(wrong, fmt.Sprintf("%s: reads the secret %s and does not have it", w.name, s.name))
		}
	}
	return wrong
}

// unknown lists the settings of a workload that the binary does not have, and its secret settings in plain text.
func (w workload) unknown(bin binary) []string {
	var wrong []string
	for name := range w.env {
		i := slices.IndexFunc(bin.settings, func(s setting) bool { return s.name == name })
		switch {
		case name == "GOMEMLIMIT":
		case i < 0:
			wrong = append(wrong, fmt.Sprintf("%s: %s is no setting", w.name, name))
		case bin.settings[i].secret && !slices.Contains(plainSecrets, name):
			wrong = append(wrong, fmt.Sprintf("%s: %s is secret and is in the file", w.name, name))
		}
	}
	for _, name := range w.secrets {
		if !slices.ContainsFunc(bin.settings, func(s setting) bool { return s.name == name && s.secret }) {
			wrong = append(wrong, fmt.Sprintf("%s: %s is no secret setting", w.name, name))
		}
	}
	return wrong
}

// needs reports whether a workload must get a setting from a secret. A workload must not get other secrets.
func (w workload) needs(s setting) bool {
	switch {
	case !s.secret || slices.Contains(plainSecrets, s.name):
		return false
	case w.command == "migrate":
		return slices.Contains(s.readBy, "migrate")
	case s.name == adminPassword:
		return false
	case s.name == adminHash:
		return w.command == ""
	case w.command == "trigger":
		return s.readBy == nil || slices.Contains(s.readBy, "trigger")
	case s.readBy == nil:
		return true
	case w.function == "":
		return slices.ContainsFunc(s.readBy, func(reader string) bool { return reader != "trigger" && reader != "migrate" })
	}
	return slices.Contains(s.readBy, w.function)
}

// accepts runs the binary with the settings of a workload, and returns an error if the binary refuses them.
func (bin binary) accepts(w workload) error {
	env := []string{}
	for name, value := range w.env {
		if name == "NATS_CA" {
			value = bin.path // any file: only a connection to NATS reads it
		}
		env = append(env, name+"="+value)
	}
	for _, name := range w.secrets {
		value := "secret"
		switch name {
		case "SENDONCE_OWNER_URL":
			value = "postgres://sendonce:secret@postgres:5432/sendonce"
		case adminHash:
			value = "pbkdf2_sha256$1000$salt$" + strings.Repeat("A", 43) + "="
		case "SENDONCE_ENCRYPTION_KEYS":
			value = sandbox.EncryptionKey
		}
		env = append(env, name+"="+value)
	}
	_, err := bin.run(env, "routes")
	return err
}

// wrongRoutes compares the routes of a gateway with those of the binary. routeOf returns the function to which the
// gateway routes a path, or "".
func wrongRoutes(bin binary, routeOf func(path string) string) []string {
	var wrong []string
	want := func(path, function string) {
		if got := routeOf(path); got != function {
			wrong = append(wrong, fmt.Sprintf("%s goes to %q, not to %q", path, got, function))
		}
	}
	for _, r := range bin.routes {
		if slices.Contains(r.roles, "trigger") {
			want(r.path, "") // the trigger does not use the gateway
			continue
		}
		path := strings.TrimSuffix(r.path, "{$}")
		want(regexp.MustCompile(`\{[^}]*\}`).ReplaceAllString(path, "x-1"), r.function)
	}
	want("/healthz", "submit")
	want("/readyz", "submit")
	want("/metrics", "")
	return wrong
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// requireGolden compares a generated file with want, after writing it if -update is set.
func requireGolden(t *testing.T, path, want, updateCommand string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
	}
	sandbox.RequireGolden(t, path, readFile(t, path), want, updateCommand)
}

func readYAML(t *testing.T, path string) []object {
	t.Helper()
	return parseYAML(t, path, []byte(readFile(t, path)))
}

func parseYAML(t *testing.T, name string, text []byte) []object {
	t.Helper()
	all, err := parse(text)
	require.NoError(t, err, filepath.Base(name))
	return all
}

func parse(text []byte) (all []object, err error) {
	for part := range strings.SplitSeq("\n"+string(text), "\n---") {
		var doc object
		if err := yaml.Unmarshal([]byte(part+"\n"), &doc); err != nil {
			return nil, fmt.Errorf("%w in %s", err, part)
		}
		if doc != nil {
			all = append(all, doc)
		}
	}
	return all, nil
}

// at returns the node at a path of names and indexes, or nil.
func at(node any, path ...any) any {
	for _, step := range path {
		switch n := node.(type) {
		case object:
			node = n[fmt.Sprint(step)]
		case []any:
			i, ok := step.(int)
			if !ok || i >= len(n) {
				return nil
			}
			node = n[i]
		default:
			return nil
		}
	}
	return node
}

func text(node any, path ...any) string {
	value := at(node, path...)
	if value == nil {
		return ""
	}
	return fmt.Sprint(value)
}

func list(node any, path ...any) []any {
	found, _ := at(node, path...).([]any)
	return found
}
