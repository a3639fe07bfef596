package deploy

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/sandbox"
)

const (
	ourImage   = "${IMAGE:-sendonce:local}"
	secretsDir = "/run/secrets/"
)

func readCompose(t *testing.T) object {
	t.Helper()
	return readYAML(t, "compose/compose.yaml")[0]
}

func services(compose object) map[string]object {
	all := map[string]object{}
	for name, s := range compose["services"].(object) {
		all[name] = s.(object)
	}
	return all
}

// withDefaults replaces each variable by its default.
func withDefaults(value string) string {
	return regexp.MustCompile(`\$\{\w+:-([^}]*)\}`).ReplaceAllString(value, "$1")
}

// composeWorkloads returns the workloads of a profile, and the mistakes in their secrets and names.
func composeWorkloads(compose object, profile string) (all []workload, wrong []string) {
	for name, s := range services(compose) {
		profiles := list(s, "profiles")
		if text(s, "image") != ourImage || profiles != nil && !slices.Contains(profiles, any(profile)) {
			continue
		}
		w := workload{name: name, command: text(s, "command", 0), env: map[string]string{}}
		var read, granted []string
		for key, value := range s["environment"].(object) {
			base, isFile := strings.CutSuffix(key, "_FILE")
			switch file := strings.ToLower(base); {
			case key == "FUNCTION_TARGET":
				w.function = fmt.Sprint(value)
			case isFile:
				w.secrets = append(w.secrets, base)
				if base == "NATS_PASSWORD" { // each service has its own user
					file = "nats_" + fmt.Sprint(s["environment"].(object)["NATS_USER"])
				}
				if value != secretsDir+file {
					wrong = append(wrong, fmt.Sprintf("%s: %s is not %s%s", name, key, secretsDir, file))
				}
				read = append(read, file)
			default:
				w.env[key] = withDefaults(fmt.Sprint(value))
			}
		}
		for _, secret := range list(s, "secrets") {
			granted = append(granted, fmt.Sprint(secret))
		}
		slices.Sort(read)
		slices.Sort(granted)
		if !slices.Equal(read, granted) {
			wrong = append(wrong, fmt.Sprintf("%s: is granted %v and reads %v", name, granted, read))
		}
		wrong = append(wrong, w.wrongUser()...)
		if w.function != "" && w.function != name {
			wrong = append(wrong, fmt.Sprintf("%s: the gateway and the trigger call the function %s under its own name", name, w.function))
		}
		all = append(all, w)
	}
	return all, wrong
}

func TestComposeMatchesBinary(t *testing.T) {
	t.Parallel()
	bin, compose := describeBinary(t), readCompose(t)
	split, wrong := composeWorkloads(compose, "split")
	require.Empty(t, wrong)
	require.Empty(t, mismatches(bin, split))

	compact, wrong := composeWorkloads(compose, "compact")
	require.Empty(t, wrong)
	require.Len(t, compact, 3, "sendonce with all functions, migrate and trigger")
	for _, w := range compact {
		require.Empty(t, w.mismatches(bin))
	}
	require.ElementsMatch(t, bin.functions, texts(list(services(compose)["sendonce"], "networks", "front", "aliases")))
	for _, w := range slices.Concat(split, compact) {
		require.NoError(t, bin.accepts(w), w.name)
	}
}

func TestComposeMismatchesAreFound(t *testing.T) {
	t.Parallel()
	bin := describeBinary(t)
	for name, c := range map[string]struct {
		spoil func(all map[string]object, bin *binary)
		want  string
	}{
		"a function without a service": {func(_ map[string]object, bin *binary) { bin.functions = append(bin.functions, "new") }, "new: runs in 0 workloads"},
		"a service without a function": {func(_ map[string]object, bin *binary) { bin.functions = bin.functions[1:] }, `there is no function "submit"`},
		"a misspelt setting":           {func(all map[string]object, _ *binary) { environment(all, "claim")["TASK_EVENT"] = "all" }, "TASK_EVENT is no setting"},
		"a secret in plain text":       {func(all map[string]object, _ *binary) { environment(all, "claim")["NATS_PASSWORD"] = "x" }, "NATS_PASSWORD is secret"},
		"a secret that no service has": {func(_ map[string]object, bin *binary) {
			bin.settings = append(bin.settings, setting{name: "X", secret: true})
		}, "reads the secret X"},
		"a secret that is not read": {func(all map[string]object, _ *binary) { environment(all, "migrate")["WECHAT_APP_SECRET_FILE"] = "x" }, "migrate: has the secret WECHAT_APP_SECRET and"},
		"the admin's password in a function": {func(all map[string]object, _ *binary) {
			environment(all, "claim")["BASIC_AUTH_PASSWORD_FILE"] = secretsDir + "basic_auth_password"
		}, "claim: has the secret BASIC_AUTH_PASSWORD and does not read it"},
		"the admin's password in the trigger": {func(all map[string]object, _ *binary) {
			environment(all, "trigger")["BASIC_AUTH_PASSWORD_HASH_FILE"] = secretsDir + "basic_auth_password_hash"
		}, "trigger: has the secret BASIC_AUTH_PASSWORD_HASH and does not read it"},
		"a file that is not granted":       {func(all map[string]object, _ *binary) { all["save"]["secrets"] = []any{"database_url"} }, "save: is granted [database_url] and reads"},
		"a file that is somewhere else":    {func(all map[string]object, _ *binary) { environment(all, "save")["DATABASE_URL_FILE"] = "/x" }, "DATABASE_URL_FILE is not /run/secrets/database_url"},
		"the NATS user of another service": {func(all map[string]object, _ *binary) { environment(all, "save")["NATS_USER"] = "deliver" }, "save: is the user deliver of NATS, not save"},
		"a function under another name":    {func(all map[string]object, _ *binary) { environment(all, "save")["FUNCTION_TARGET"] = "relay" }, "call the function relay under its own name"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			compose, changed := readCompose(t), bin
			c.spoil(services(compose), &changed)
			all, wrong := composeWorkloads(compose, "split")
			require.Contains(t, strings.Join(append(wrong, mismatches(changed, all)...), "\n"), c.want)
		})
	}
}

// environment gives a service its own copy of its environment, and returns the copy.
func environment(all map[string]object, name string) object {
	all[name]["environment"] = clone(all[name]["environment"])
	return all[name]["environment"].(object)
}

func texts(items []any) []string {
	all := []string{}
	for _, item := range items {
		all = append(all, fmt.Sprint(item))
	}
	return all
}

func TestComposeUpCreatesEverySecretFile(t *testing.T) {
	t.Parallel()
	script := readFile(t, "compose/up")
	created := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^secret (\S+) `).FindAllStringSubmatch(script, -1) {
		created[match[1]] = true
	}
	created["basic_auth_password_hash"] = strings.Contains(script, "hash=secrets/basic_auth_password_hash\n")
	for _, u := range bus.Users(bus.StreamAccepted) { // up reads their names from nats-users.conf
		created["nats_"+u.Name] = true
	}
	compose := readCompose(t)
	for name, secret := range compose["secrets"].(object) {
		require.Equal(t, "./secrets/"+name, text(secret, "file"))
		require.True(t, created[name], "up does not create %s", name)
		used := 0
		for _, s := range services(compose) {
			if slices.Contains(texts(list(s, "secrets")), name) {
				used++
			}
		}
		require.Positive(t, used, "no service has %s", name)
		delete(created, name)
	}
	require.Equal(t, map[string]bool{"nats_operator": true, "basic_auth_password": true}, created, "no service needs these, only operators")
}

// networksOf returns the networks of a service, with the options of the service in each.
func networksOf(s object) map[string]object {
	all := map[string]object{}
	for _, name := range texts(list(s, "networks")) {
		all[name] = nil
	}
	if named, ok := s["networks"].(object); ok {
		for name, options := range named {
			all[name], _ = options.(object)
		}
	}
	return all
}

func TestExternalNetworks(t *testing.T) {
	t.Parallel()
	compose, external := readCompose(t), map[string][]string{} // the services in each network from which other hosts can be reached
	for name, s := range services(compose) {
		for network := range networksOf(s) {
			if text(compose, "networks", network, "internal") != "true" {
				external[network] = append(external[network], name)
			}
		}
	}
	for _, names := range external {
		slices.Sort(names)
	}
	require.Equal(t, map[string][]string{"edge": {"gateway"}, "outgoing": {"deliver", "sendonce", "wechat"}}, external,
		"sendonce runs all functions in the profile compact")
}

// Functions must trust X-Forwarded-For only from the gateway, whose address no other container can get.
func TestOnlyGatewayIsTrusted(t *testing.T) {
	t.Parallel()
	compose := readCompose(t)
	gateway := withDefaults(text(networksOf(services(compose)["gateway"])["front"], "ipv4_address"))
	bin := describeBinary(t)
	for _, profile := range []string{"split", "compact"} {
		all, _ := composeWorkloads(compose, profile)
		for _, w := range all {
			if w.command == "" {
				require.Equal(t, gateway, w.env["TRUSTED_PROXIES"], w.name)
			}
		}
	}
	address, err := netip.ParseAddr(gateway)
	require.NoError(t, err)
	network := at(compose, "networks", "front", "ipam", "config", 0)
	subnet, err := netip.ParsePrefix(withDefaults(text(network, "subnet")))
	require.NoError(t, err)
	assigned, err := netip.ParsePrefix(withDefaults(text(network, "ip_range")))
	require.NoError(t, err)
	require.True(t, subnet.Contains(address) && !assigned.Contains(address), "another container could get the address %s", address)
	const otherContainers = 3 // sendonce, trigger and prometheus
	require.Less(t, len(bin.functions)+otherContainers, 1<<(32-assigned.Bits()))
}

func TestComposeServiceLimits(t *testing.T) {
	t.Parallel()
	for name, s := range services(readCompose(t)) {
		require.NotEmpty(t, text(s, "mem_limit"), name)
		require.NotEmpty(t, text(s, "stop_grace_period"), "%s: without stop_grace_period podman's API kills a container at once", name)
		require.NotEmpty(t, text(s, "logging", "options", "max-size"), name)
		oneShot := name == "migrate"
		require.Equal(t, map[bool]string{true: "on-failure", false: "unless-stopped"}[oneShot], text(s, "restart"), name)
		if !oneShot {
			require.NotEmpty(t, list(s, "healthcheck", "test"), name)
		}
		if name != "postgres" { // its image changes the user itself
			require.Equal(t, "true", text(s, "read_only"), name)
			require.Equal(t, []string{"ALL"}, texts(list(s, "cap_drop")), name)
		}
		if text(s, "image") == ourImage {
			require.Equal(t, "30s", text(s, "stop_grace_period"), "must be longer than SENDONCE_DRAIN_TIMEOUT")
			if !oneShot {
				require.Equal(t, []string{"CMD", "/sendonce", "health"}, texts(list(s, "healthcheck", "test")), name)
			}
			require.Equal(t, ".env", text(s, "env_file"), "settings such as SENDONCE_OUTGOING_NETWORKS must be the same for all functions")
		}
		if name != "gateway" {
			require.Empty(t, list(s, "ports"), "%s must not be reachable from outside", name)
		}
	}
}

func TestComposeConnectionsSuffice(t *testing.T) {
	t.Parallel()
	bin, compose := describeBinary(t), readCompose(t)
	match := regexp.MustCompile(`max_connections=(\d+)`).FindStringSubmatch(text(services(compose)["postgres"], "command"))
	require.NotNil(t, match)
	limit, err := strconv.Atoi(match[1])
	require.NoError(t, err)
	perRole, err := strconv.Atoi(bin.defaultOf("SENDONCE_DATABASE_MAX_CONNS"))
	require.NoError(t, err)
	const roles, spare = 2, 20
	require.LessOrEqual(t, len(bin.functions)*perRole*roles+spare, limit)
}

const (
	envFile   = "compose/.env.example"
	generated = "# --- Settings of Sendonce, as `sendonce config` lists them; `make golden` writes what follows. ---\n"
)

func TestExampleEnvironment(t *testing.T) {
	t.Parallel()
	bin, compose := describeBinary(t), readCompose(t)
	omitted := map[string]bool{"APP_HOST": true, "APP_PORT": true, "PORT": true} // other containers need the default address and port
	for _, s := range services(compose) {
		if text(s, "image") == ourImage {
			for name := range s["environment"].(object) {
				omitted[name] = true // compose.yaml sets it
			}
		}
	}
	var b strings.Builder
	for _, s := range bin.settings {
		if s.secret || omitted[s.name] {
			continue
		}
		fmt.Fprintf(&b, "\n# %s", s.meaning)
		if s.readBy != nil {
			fmt.Fprintf(&b, " (%s)", strings.Join(s.readBy, ", "))
		}
		fmt.Fprintf(&b, "\n#%s=%s\n", s.name, s.def)
	}
	head, tail, found := strings.Cut(readFile(t, envFile), generated)
	require.True(t, found)
	if *update {
		require.NoError(t, os.WriteFile(envFile, []byte(head+generated+b.String()), 0o644))
		return
	}
	sandbox.RequireGolden(t, envFile, tail, b.String(), "go test ./deploy -run TestExampleEnvironment -update")

	used := map[string]bool{"COMPOSE_PROFILES": true}
	for _, match := range regexp.MustCompile(`\$\{(\w+)`).FindAllStringSubmatch(readFile(t, "compose/compose.yaml"), -1) {
		used[match[1]] = true
	}
	listed := map[string]bool{"COMMIT": true, "SECRETS": true, "NATS_CONFIG": true, "GATEWAY_CONFIG": true, "PROMETHEUS_CONFIG": true} // set by `up`
	for _, match := range regexp.MustCompile(`(?m)^#?([A-Z_]+)=`).FindAllStringSubmatch(head, -1) {
		listed[match[1]] = true
	}
	require.Equal(t, used, listed, "the example must list the variables of compose.yaml; they must not have the prefixes of settings")
	for name := range listed {
		require.NotRegexp(t, "^(SENDONCE|APP|BASIC_AUTH|TWO_PHASE|WECHAT)_", name)
	}
}

// caddyRoutes parses the Caddyfile. routeOf returns the function to which Caddy routes a path; "" = Caddy blocks the
// path.
func caddyRoutes(t *testing.T) (routeOf func(path string) string) {
	t.Helper()
	content := readFile(t, "compose/Caddyfile")
	inside := regexp.MustCompile(`(?m)^\s*@inside path (.*)$`).FindStringSubmatch(content)
	table := regexp.MustCompile(`(?s)map \{path\} \{function\} \{(.*?)\n\t\t\}`).FindStringSubmatch(content)
	require.NotNil(t, inside)
	require.NotNil(t, table)
	return func(path string) string {
		for _, pattern := range strings.Fields(inside[1]) {
			prefix, isPrefix := strings.CutSuffix(pattern, "*")
			if path == prefix || isPrefix && strings.HasPrefix(path, prefix) {
				return ""
			}
		}
		for line := range strings.Lines(strings.TrimSpace(table[1])) {
			fields := strings.Fields(line)
			pattern, isPattern := strings.CutPrefix(fields[0], "~")
			if fields[0] == "default" || isPattern && regexp.MustCompile(pattern).MatchString(path) {
				return fields[1]
			}
		}
		return ""
	}
}

func TestGatewayGracePeriod(t *testing.T) {
	t.Parallel()
	match := regexp.MustCompile(`(?m)^\tgrace_period (\S+)$`).FindStringSubmatch(readFile(t, "compose/Caddyfile"))
	require.NotNil(t, match, "without grace_period an open stream delays the shutdown without limit")
	gracePeriod, err := time.ParseDuration(match[1])
	require.NoError(t, err)
	stopGracePeriod, err := time.ParseDuration(text(services(readCompose(t))["gateway"], "stop_grace_period"))
	require.NoError(t, err)
	require.Less(t, gracePeriod, stopGracePeriod)
}

func TestComposeGatewayRoutes(t *testing.T) {
	t.Parallel()
	bin, routeOf := describeBinary(t), caddyRoutes(t)
	require.Empty(t, wrongRoutes(bin, routeOf))
	bin.routes = append(bin.routes, route{function: "new", path: "/api/v1/new"})
	require.Equal(t, []string{`/api/v1/new goes to "submit", not to "new"`}, wrongRoutes(bin, routeOf))
}
