package deploy

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/outgoing"
)

// cluster has objects of Kubernetes, such as those of an overlay.
type cluster []object

// of returns the objects of a kind, such as "apps/v1 Deployment".
func (c cluster) of(kind string) cluster {
	return slices.DeleteFunc(slices.Clone(c), func(o object) bool { return text(o, "apiVersion")+" "+text(o, "kind") != kind })
}

func (c cluster) named(name string) object {
	if i := slices.IndexFunc(c, func(o object) bool { return text(o, "metadata", "name") == name }); i >= 0 {
		return c[i]
	}
	return nil
}

const (
	knativeService = "serving.knative.dev/v1 Service"
	deployment     = "apps/v1 Deployment"
	statefulSet    = "apps/v1 StatefulSet"
	job            = "batch/v1 Job"
	configMap      = "v1 ConfigMap"
	networkPolicy  = "networking.k8s.io/v1 NetworkPolicy"
)

// sendonce returns the objects whose pods run the image of Sendonce.
func (c cluster) sendonce() cluster {
	return slices.Concat(c.of(knativeService), c.of(deployment), c.of(job))
}

// workloads returns the workloads of a cluster, and the mistakes in their settings, secrets and names.
func (c cluster) workloads() (all []workload, wrong []string) {
	for _, o := range c.sendonce() {
		container := at(o, "spec", "template", "spec", "containers", 0)
		w := workload{name: text(o, "metadata", "name"), command: text(container, "args", 0), env: map[string]string{}}
		for _, from := range list(container, "envFrom") {
			data, _ := at(c.of(configMap).named(text(from, "configMapRef", "name")), "data").(object)
			if data == nil {
				wrong = append(wrong, fmt.Sprintf("%s: there is no ConfigMap %s", w.name, text(from, "configMapRef", "name")))
			}
			for name, value := range data {
				w.env[name] = fmt.Sprint(value)
			}
		}
		for _, v := range list(container, "env") {
			name := text(v, "name")
			switch {
			case name == "FUNCTION_TARGET":
				w.function = text(v, "value")
			case at(v, "valueFrom") == nil:
				w.env[name] = text(v, "value")
			case at(v, "valueFrom", "configMapKeyRef") != nil:
				ref := at(v, "valueFrom", "configMapKeyRef")
				w.env[name] = text(c.of(configMap).named(text(ref, "name")), "data", text(ref, "key"))
				if w.env[name] == "" {
					wrong = append(wrong, fmt.Sprintf("%s: there is no %s in the ConfigMap %s", w.name, text(ref, "key"), text(ref, "name")))
				}
			default:
				w.secrets = append(w.secrets, name)
				if key := text(v, "valueFrom", "secretKeyRef", "key"); key != name {
					wrong = append(wrong, fmt.Sprintf("%s: %s is read from the key %s", w.name, name, key))
				}
				if from := text(v, "valueFrom", "secretKeyRef", "name"); name == "NATS_PASSWORD" && from != "sendonce-nats-"+w.name {
					wrong = append(wrong, fmt.Sprintf("%s: has the password of %s", w.name, from))
				}
			}
		}
		wrong = append(wrong, w.wrongUser()...)
		if w.function != "" && w.function != w.name {
			wrong = append(wrong, fmt.Sprintf("%s: the routes and the trigger call the function %s under its own name", w.name, w.function))
		}
		all = append(all, w)
	}
	return all, wrong
}

func TestKnativeMatchesBinary(t *testing.T) {
	t.Parallel()
	bin := describeBinary(t)
	for _, dir := range overlays(t) {
		all, wrong := render(t, dir).workloads()
		require.Empty(t, wrong, dir)
		require.Empty(t, mismatches(bin, all), dir)
		for _, w := range all {
			require.NoError(t, bin.accepts(w), w.name)
		}
	}
}

// TestComposeMismatchesAreFound tests the other kinds of mistakes.
func TestMisspeltSettingInConfigMapIsFound(t *testing.T) {
	t.Parallel()
	c := render(t, "knative/overlays/production")
	c.of(configMap).named("sendonce")["data"].(object)["SENDONCE_NATS_REPLICA"] = "3"
	all, wrong := c.workloads()
	require.Contains(t, append(wrong, mismatches(describeBinary(t), all)...), "claim: SENDONCE_NATS_REPLICA is no setting")
}

// The Secrets of the overlays local and production must have exactly the keys that pods and the operator of Postgres
// read.
func TestSecretKeys(t *testing.T) {
	t.Parallel()
	for dir, secrets := range map[string]cluster{
		"knative/overlays/local":      render(t, "knative/overlays/local").of("v1 Secret"),
		"knative/overlays/production": append(readYAML(t, "knative/overlays/production/secrets.example.yaml"), natsSecrets(t)...),
	} {
		stored, read := map[string]bool{}, map[string]bool{}
		for _, secret := range secrets {
			for key := range secret["stringData"].(object) {
				stored[text(secret, "metadata", "name")+"/"+key] = true
			}
		}
		all := render(t, dir)
		walk([]object(all), func(o object) {
			ref, _ := o["secretKeyRef"].(object)
			if key := text(ref, "name") + "/" + text(ref, "key"); ref != nil && (ref["optional"] != true || stored[key]) {
				read[key] = true
			}
		})
		walk([]object(all), func(o object) { // volumes
			secret, _ := o["secret"].(object)
			name := text(secret, "secretName") + text(secret, "name")
			for _, item := range list(secret, "items") {
				read[name+"/"+text(item, "key")] = true
			}
			if secret["secretName"] != nil && secret["items"] == nil && secret["optional"] != true {
				for _, key := range []string{"ca.crt", "tls.crt", "tls.key"} {
					read[name+"/"+key] = true
				}
			}
		})
		for _, unread := range []string{"sendonce-nats-operator/NATS_PASSWORD", "sendonce-nats-sendonce/NATS_PASSWORD"} {
			delete(stored, unread) // no pod reads it
		}
		for _, o := range all.of("postgresql.cnpg.io/v1 Cluster") {
			name := text(o, "spec", "bootstrap", "initdb", "secret", "name")
			read[name+"/username"], read[name+"/password"] = true, true
			require.Equal(t, name, text(o, "spec", "managed", "roles", 0, "passwordSecret", "name"))
		}
		require.Equal(t, read, stored, dir)
	}
}

func walk(node any, visit func(object)) {
	switch n := node.(type) {
	case []object:
		for _, inner := range n {
			walk(inner, visit)
		}
	case []any:
		for _, inner := range n {
			walk(inner, visit)
		}
	case object:
		visit(n)
		for _, inner := range n {
			walk(inner, visit)
		}
	}
}

// httpRoutes reads the HTTPRoute. routeOf returns the function to which the HTTPRoute routes a path, by an Exact match
// or else by the longest prefix; "" = there is no rule for the path.
func (c cluster) httpRoutes(t *testing.T) (routeOf func(path string) string) {
	route := c.of("gateway.networking.k8s.io/v1 HTTPRoute").named("sendonce")
	require.NotNil(t, route)
	return func(path string) string {
		best, found := -1, ""
		for _, rule := range list(route, "spec", "rules") {
			host := text(rule, "filters", 0, "urlRewrite", "hostname")
			function, ok := strings.CutSuffix(host, ".sendonce.svc.cluster.local")
			require.True(t, ok, host)
			require.Equal(t, "kourier-internal", text(rule, "backendRefs", 0, "name"))
			for _, match := range list(rule, "matches") {
				value, weight := text(match, "path", "value"), len(text(match, "path", "value"))
				fits := path == value
				switch text(match, "path", "type") {
				case "Exact":
					weight = 1 << 20
				case "PathPrefix":
					fits = fits || strings.HasPrefix(path, value+"/")
				}
				if fits && weight > best {
					best, found = weight, function
				}
			}
		}
		return found
	}
}

func TestHTTPRoute(t *testing.T) {
	t.Parallel()
	bin := describeBinary(t)
	for _, dir := range overlays(t) {
		c := render(t, dir)
		require.Empty(t, wrongRoutes(bin, c.httpRoutes(t)), dir)
		from := at(c.of("gateway.networking.k8s.io/v1beta1 ReferenceGrant").named("sendonce"), "spec", "from", 0)
		require.Equal(t, "sendonce", text(from, "namespace"))
	}
}

func TestKnativeServiceFields(t *testing.T) {
	t.Parallel()
	known := moduleFiles(t, "knative.dev/serving@v0.51.0", "pkg/apis/autoscaling/register.go")["pkg/apis/autoscaling/register.go"]
	for _, dir := range overlays(t) {
		c := render(t, dir)
		settings := c.of(configMap).named("sendonce")["data"]
		for _, o := range c.of(knativeService) {
			name, template := text(o, "metadata", "name"), at(o, "spec", "template")
			for annotation := range at(template, "metadata", "annotations").(object) {
				suffix, ok := strings.CutPrefix(annotation, "autoscaling.knative.dev")
				require.True(t, ok, annotation)
				require.Contains(t, string(known), `"`+suffix+`"`, "%s: Knative does not know %s", name, annotation)
			}
			least, most := scale(t, o, "min"), scale(t, o, "max")
			require.LessOrEqual(t, least, most, name)
			switch {
			case name == "exporter":
				require.Equal(t, 1, least, "Prometheus scrapes its pod")
				require.Equal(t, 1, most, "all pods would report the same values")
			case name != "claim" || strings.HasSuffix(dir, "local"):
				require.Zero(t, least, "%s does not scale to zero", name)
			}
			require.Equal(t, "cluster-local", text(o, "metadata", "labels", "networking.knative.dev/visibility"))
			spec := at(template, "spec")
			for _, gated := range []string{"nodeSelector", "affinity", "tolerations", "initContainers", "hostNetwork", "dnsPolicy", "topologySpreadConstraints"} {
				require.NotContains(t, spec, gated, "%s: Knative accepts it only behind a feature flag", name)
			}
			concurrency, timeout := number(t, spec, "containerConcurrency"), number(t, spec, "timeoutSeconds")
			require.True(t, concurrency >= 1 && concurrency <= 1000, name)
			require.True(t, timeout >= 30 && timeout <= 600, name)
			if name == "stream" {
				longest, err := time.ParseDuration(text(settings, "SENDONCE_STREAM_MAX"))
				require.NoError(t, err)
				require.Less(t, longest, time.Duration(timeout)*time.Second)
			}
			container := at(spec, "containers", 0)
			require.Equal(t, "sendonce", text(container, "envFrom", 0, "configMapRef", "name"), "settings such as SENDONCE_OUTGOING_NETWORKS must be the same for all functions")
			require.Equal(t, "true", text(container, "securityContext", "runAsNonRoot"))
			require.Equal(t, "true", text(container, "securityContext", "readOnlyRootFilesystem"))
			require.NotEmpty(t, text(container, "resources", "limits", "memory"))
			require.Equal(t, "/healthz", text(container, "readinessProbe", "httpGet", "path"))
			require.Empty(t, text(container, "readinessProbe", "periodSeconds"), "%s: with periodSeconds Knative would probe only once per period during the start", name)
			require.Equal(t, "/healthz", text(container, "livenessProbe", "httpGet", "path"))
		}
	}
}

func scale(t *testing.T, service object, which string) int {
	t.Helper()
	return number(t, service, "spec", "template", "metadata", "annotations", "autoscaling.knative.dev/"+which+"-scale")
}

func number(t *testing.T, node any, path ...any) int {
	t.Helper()
	n, err := strconv.Atoi(text(node, path...))
	require.NoError(t, err, "%v", path)
	return n
}

// The maximum number of pods must not need more connections than Postgres accepts.
func TestKnativeConnectionsSuffice(t *testing.T) {
	t.Parallel()
	// A function logs in as at most two roles, with SENDONCE_DATABASE_MAX_CONNS connections each. admin, console and
	// sweep also log in as a third role, with at most two connections.
	const roles, connsOfThirdRole, spare = 2, 2, 30
	for _, dir := range overlays(t) {
		c := render(t, dir)
		settings := c.of(configMap).named("sendonce")["data"]
		pods, thirdRoleConns := 0, 0
		for _, o := range c.of(knativeService) {
			pods += scale(t, o, "max")
			if name := text(o, "metadata", "name"); name == "admin" || name == "console" || name == "sweep" {
				thirdRoleConns += scale(t, o, "max") * connsOfThirdRole
			}
		}
		needed := pods*number(t, settings, "SENDONCE_DATABASE_MAX_CONNS")*roles + thirdRoleConns
		poolers := c.of("postgresql.cnpg.io/v1 Pooler")
		require.Equal(t, strconv.FormatBool(len(poolers) > 0), text(settings, "SENDONCE_DATABASE_POOLER"), dir)
		if len(poolers) == 0 {
			limit := regexp.MustCompile(`max_connections=(\d+)`).FindStringSubmatch(fmt.Sprint(list(c.of(statefulSet).named("postgres"), "spec", "template", "spec", "containers", 0, "args")))
			require.NotNil(t, limit, dir)
			maxConnections, err := strconv.Atoi(limit[1])
			require.NoError(t, err)
			require.LessOrEqual(t, needed+spare, maxConnections, dir)
			continue
		}
		pooler := poolers[0]
		instances := number(t, pooler, "spec", "instances")
		bouncer := at(pooler, "spec", "pgbouncer")
		require.Equal(t, "transaction", text(bouncer, "poolMode"))
		require.Equal(t, "1", text(bouncer, "parameters", "server_reset_query_always"), "functions share the sessions of the pooler")
		require.LessOrEqual(t, needed, (instances-1)*number(t, bouncer, "parameters", "max_client_conn"), "must suffice with one pooler down")
		serverConns := instances*(roles*number(t, bouncer, "parameters", "default_pool_size")+roles*number(t, bouncer, "parameters", "reserve_pool_size")) + thirdRoleConns
		postgres := c.of("postgresql.cnpg.io/v1 Cluster").named(text(pooler, "spec", "cluster", "name"))
		require.LessOrEqual(t, serverConns+spare, number(t, postgres, "spec", "postgresql", "parameters", "max_connections"))
	}
}

func TestProductionIsReplicated(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"knative/overlays/production", "knative/overlays/eventing"} {
		c := render(t, dir)
		settings := c.of(configMap).named("sendonce")["data"]
		nats := c.of(statefulSet).named("nats")
		require.Equal(t, 3, number(t, settings, "SENDONCE_NATS_REPLICAS"))
		require.Equal(t, 3, number(t, nats, "spec", "replicas"))
		require.NotEmpty(t, list(nats, "spec", "template", "spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution"))
		routes := text(natsSecrets(t).named("nats-passwords"), "stringData", "nats-passwords.conf")
		require.Equal(t, "tls://"+natsService+":4222", text(settings, "NATS_URL"))
		for i := range 3 {
			require.Contains(t, routes, fmt.Sprintf("@nats-%d.nats.sendonce.svc.cluster.local:6222", i))
		}
		postgres := at(c.of("postgresql.cnpg.io/v1 Cluster").named("postgres"), "spec")
		require.Equal(t, "any", text(postgres, "postgresql", "synchronous", "method"))
		require.Equal(t, "required", text(postgres, "postgresql", "synchronous", "dataDurability"))
		require.Equal(t, "on", text(postgres, "postgresql", "parameters", "synchronous_commit"))
		require.Greater(t, number(t, postgres, "instances"), number(t, postgres, "postgresql", "synchronous", "number")+1, "commits must not wait when one standby is down")
		require.Equal(t, "true", text(postgres, "managed", "roles", 0, "createrole"))
		require.Greater(t, number(t, c.of(deployment).named("trigger"), "spec", "replicas"), 1)
		require.Len(t, c.of("policy/v1 PodDisruptionBudget"), 2)
		functionsURL := text(c.of(configMap).named("sendonce-database"), "data", "DATABASE_URL")
		require.Contains(t, functionsURL, "target_session_attrs=read-write")
		require.NotContains(t, functionsURL, "@", "each role has its own password")
	}
	migrateURL := text(cluster(readYAML(t, "knative/overlays/production/secrets.example.yaml")).named("sendonce-migrate"), "stringData", "SENDONCE_OWNER_URL")
	require.Contains(t, migrateURL, "target_session_attrs=read-write")
	require.NotContains(t, migrateURL, "pooler", "the advisory lock of migrate belongs to a session")
}

const nodeCache = "169.254.20.10/32" // NodeLocal DNSCache

func TestOnlyDeliverAndWeChatReachOutside(t *testing.T) {
	t.Parallel()
	for _, dir := range overlays(t) {
		for _, o := range render(t, dir).of(networkPolicy) {
			for _, rule := range list(o, "spec", "egress") {
				open := len(list(rule, "to")) == 0
				for _, peer := range list(rule, "to") {
					cidr := text(peer, "ipBlock", "cidr")
					open = open || cidr != "" && cidr != nodeCache
				}
				if open {
					require.Equal(t, object{"key": "serving.knative.dev/service", "operator": "In", "values": []any{"deliver", "wechat"}},
						at(o, "spec", "podSelector", "matchExpressions", 0), "%s: %s", dir, text(o, "metadata", "name"))
				}
			}
		}
	}
}

// deliver refuses to call addresses that are not public. The policy must deny these addresses too, in case deliver is
// compromised. NAT64 embeds an IPv4 address in the last 32 bits of an IPv6 address.
func TestOutgoingPolicyExceptsPrivateNetworks(t *testing.T) {
	t.Parallel()
	nat64 := netip.MustParsePrefix("64:ff9b::/96")
	want := map[string][]string{}
	for _, p := range outgoing.NonPublicNetworks {
		if p.Addr().Is6() {
			want["::/0"] = append(want["::/0"], p.String())
			continue
		}
		mapped, v4 := nat64.Addr().As16(), p.Addr().As4()
		copy(mapped[12:], v4[:])
		want["0.0.0.0/0"] = append(want["0.0.0.0/0"], p.String())
		want[nat64.String()] = append(want[nat64.String()], netip.PrefixFrom(netip.AddrFrom16(mapped), nat64.Bits()+p.Bits()).String())
	}
	for _, dir := range overlays(t) {
		policy := render(t, dir).of(networkPolicy).named("outgoing")
		got := map[string][]string{}
		for _, peer := range list(at(policy, "spec", "egress", 0), "to") {
			got[text(peer, "ipBlock", "cidr")] = texts(list(peer, "ipBlock", "except"))
		}
		require.Equal(t, want, got, dir)
	}
}

// Each selector selects a pod, and a NetworkPolicy selects each pod except that of the local database.
func TestSelectorsMatchPods(t *testing.T) {
	t.Parallel()
	for _, dir := range overlays(t) {
		c := render(t, dir)
		var pods []object // the labels of each kind of pod
		for _, o := range slices.Concat(c.sendonce(), c.of(statefulSet)) {
			labels := clone(at(o, "spec", "template", "metadata", "labels")).(object)
			labels["serving.knative.dev/service"] = text(o, "metadata", "name") // Knative adds it
			pods = append(pods, labels)
			account := text(o, "spec", "template", "spec", "serviceAccountName")
			require.True(t, account == "" || c.of("v1 ServiceAccount").named(account) != nil, account)
		}
		for _, o := range c.of("postgresql.cnpg.io/v1 Cluster") {
			pods = append(pods, at(o, "spec", "inheritedMetadata", "labels").(object))
		}
		walk([]object(slices.Concat(c.of(networkPolicy), c.of("policy/v1 PodDisruptionBudget"), c.of("v1 Service"))), func(o object) {
			for _, name := range []string{"podSelector", "selector"} {
				if s, ok := o[name].(object); ok {
					require.True(t, slices.ContainsFunc(pods, func(labels object) bool { return selects(s, labels) }), "%s: %v selects no pod", dir, s)
				}
			}
		})
		for _, labels := range pods {
			hasPolicy := slices.ContainsFunc(c.of(networkPolicy), func(o object) bool { return selects(at(o, "spec", "podSelector").(object), labels) })
			require.True(t, hasPolicy || labels["app.kubernetes.io/component"] == "database" && strings.HasSuffix(dir, "local"), "%v", labels)
		}
	}
}

// selects reports whether a label selector, or the plain map of a Service, matches.
func selects(selector, labels object) bool {
	expressions, matchLabels := list(selector, "matchExpressions"), selector
	if _, wrapped := selector["matchLabels"]; wrapped || expressions != nil {
		matchLabels, _ = selector["matchLabels"].(object)
	}
	for name, value := range matchLabels {
		if labels[name] != value {
			return false
		}
	}
	return !slices.ContainsFunc(expressions, func(e any) bool { return !slices.Contains(list(e, "values"), labels[text(e, "key")]) })
}

func TestPingSources(t *testing.T) {
	t.Parallel()
	bin := describeBinary(t)
	all := render(t, "knative/overlays/eventing").of("sources.knative.dev/v1 PingSource")
	require.Len(t, all, 2)
	for _, o := range all {
		sink, err := url.Parse(text(o, "spec", "sink", "uri"))
		require.NoError(t, err)
		name := text(o, "metadata", "name")
		require.Equal(t, name+".sendonce.svc.cluster.local", sink.Host)
		i := slices.IndexFunc(bin.routes, func(r route) bool { return r.path == sink.Path && r.function == name })
		require.GreaterOrEqual(t, i, 0, sink.Path)
		every := regexp.MustCompile(`/(\d+) \* \* \* \*$`).FindStringSubmatch(text(o, "spec", "schedule"))
		require.NotNil(t, every)
		minutes, err := strconv.Atoi(every[1])
		require.NoError(t, err)
		require.Greater(t, time.Duration(minutes)*time.Minute, 2*time.Minute, "a function scales to zero after the stable window (60 s) and the retention of its last pod: a shorter interval keeps it running")
	}
}
