package deploy

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
)

// sources are the Go modules that contain the schemas of Kubernetes, Knative and so on.
var sources = []struct{ module, prefix string }{
	{"knative.dev/serving@v0.51.0", "config/core/300-resources/"},
	{"knative.dev/eventing@v0.48.1", "config/core/resources/"},
	{"sigs.k8s.io/gateway-api@v1.4.0", "config/crd/standard/"},
	{"github.com/cloudnative-pg/cloudnative-pg@v1.27.1", "config/crd/bases/"},
	{"k8s.io/kubectl@v0.34.3", "testdata/openapi/swagger.json"},
	{"github.com/compose-spec/compose-go/v2@v2.9.1", "schema/compose-spec.json"},
}

// moduleFiles returns the files below prefix in a module.
func moduleFiles(t *testing.T, module, prefix string) map[string][]byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	cmd.Dir = t.TempDir() // outside our own module
	out, err := cmd.Output()
	require.NoError(t, err, "%s: %s", module, out)
	var found struct{ Zip string }
	require.NoError(t, json.Unmarshal(out, &found))
	archive, err := zip.OpenReader(found.Zip)
	require.NoError(t, err)
	defer archive.Close()
	files := map[string][]byte{}
	for _, f := range archive.File {
		name := strings.TrimPrefix(f.Name, module+"/")
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		r, err := f.Open()
		require.NoError(t, err)
		files[name], err = io.ReadAll(r)
		require.NoError(t, err)
		require.NoError(t, r.Close())
	}
	require.NotEmpty(t, files, "%s has no %s", module, prefix)
	return files
}

// schemas validates objects by their kind.
type schemas struct {
	compiler *jsonschema.Compiler
	urls     map[string]string // by "apiVersion kind", "compose" or "core"
}

const (
	core     = "core.json"
	metadata = core + "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
)

func readSchemas(t *testing.T) *schemas {
	t.Helper()
	s := &schemas{compiler: jsonschema.NewCompiler(), urls: map[string]string{}}
	s.compiler.DefaultDraft(jsonschema.Draft7)
	for _, source := range sources {
		for name, content := range moduleFiles(t, source.module, source.prefix) {
			switch {
			case strings.HasSuffix(name, "swagger.json"):
				s.addCore(t, content)
			case strings.HasSuffix(name, "compose-spec.json"):
				s.add(t, "compose", "compose.json", content)
			case filepath.Ext(name) == ".yaml":
				s.addCRDs(t, content)
			}
		}
	}
	return s
}

func (s *schemas) add(t *testing.T, key, url string, content []byte) {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(content))
	require.NoError(t, err)
	require.NoError(t, s.compiler.AddResource(url, doc))
	s.urls[key] = url
}

func (s *schemas) addCRDs(t *testing.T, content []byte) {
	t.Helper()
	for _, crd := range parseYAML(t, "crd", content) {
		for _, version := range list(crd, "spec", "versions") {
			key := fmt.Sprintf("%s/%s %s", text(crd, "spec", "group"), text(version, "name"), text(crd, "spec", "names", "kind"))
			schema := at(version, "schema", "openAPIV3Schema")
			closeObjects(schema)
			if top, ok := at(schema, "properties").(object); ok {
				for _, name := range []string{"apiVersion", "kind", "metadata"} {
					top[name] = object{} // (*schemas).check checks these three itself
				}
			}
			content, err := json.Marshal(schema)
			require.NoError(t, err)
			s.add(t, key, strings.ReplaceAll(key, " ", "/")+".json", content)
		}
	}
}

// addCore adds the kinds of Kubernetes itself. The swagger.json of kubectl has no policy/v1. The PodDisruptionBudget of
// policy/v1 has the fields of policy/v1beta1 and, since Kubernetes 1.27, unhealthyPodEvictionPolicy.
func (s *schemas) addCore(t *testing.T, content []byte) {
	t.Helper()
	var doc object
	require.NoError(t, json.Unmarshal(content, &doc))
	delete(doc, "paths")
	definitions := doc["definitions"].(object)
	for name, schema := range definitions {
		closeObjects(schema)
		if strings.HasSuffix(name, ".IntOrString") || strings.HasSuffix(name, ".Quantity") {
			definitions[name] = object{"type": []any{"string", "integer", "number"}}
		}
		for _, gvk := range list(schema, "x-kubernetes-group-version-kind") {
			version := strings.TrimPrefix(text(gvk, "group")+"/"+text(gvk, "version"), "/")
			s.urls[version+" "+text(gvk, "kind")] = core + "#/definitions/" + name
		}
	}
	budget := definitions["io.k8s.api.policy.v1beta1.PodDisruptionBudgetSpec"].(object)
	budget["properties"].(object)["unhealthyPodEvictionPolicy"] = object{"enum": []any{"IfHealthyBudget", "AlwaysAllow"}}
	s.urls["policy/v1 PodDisruptionBudget"] = s.urls["policy/v1beta1 PodDisruptionBudget"]
	content, err := json.Marshal(doc)
	require.NoError(t, err)
	s.add(t, "core", core, content)
}

// closeObjects makes a schema reject unknown fields, which the API server would drop silently.
func closeObjects(node any) {
	switch n := node.(type) {
	case []any:
		for _, inner := range n {
			closeObjects(inner)
		}
	case object:
		for _, inner := range n {
			closeObjects(inner)
		}
		_, hasProperties := n["properties"].(object)
		_, setsAdditional := n["additionalProperties"]
		if hasProperties && n["type"] == "object" && !setsAdditional && n["x-kubernetes-preserve-unknown-fields"] != true {
			n["additionalProperties"] = false
		}
	}
}

// check validates an object of Kubernetes.
func (s *schemas) check(o object) error {
	key := text(o, "apiVersion") + " " + text(o, "kind")
	url, ok := s.urls[key]
	if !ok {
		return fmt.Errorf("there is no schema for %s", key)
	}
	if err := s.checkAgainst(metadata, o["metadata"]); err != nil {
		return err
	}
	return s.checkAgainst(url, o)
}

func (s *schemas) checkAgainst(url string, value any) error {
	schema, err := s.compiler.Compile(url)
	if err != nil {
		return err
	}
	content, err := json.Marshal(value)
	if err != nil {
		return err
	}
	plain, err := jsonschema.UnmarshalJSON(bytes.NewReader(content))
	if err != nil {
		return err
	}
	return schema.Validate(plain)
}

func TestManifestsMatchSchemas(t *testing.T) {
	t.Parallel()
	s := readSchemas(t) // the slowest part, so it is done once
	t.Run("every manifest is valid", func(t *testing.T) { s.checkEveryManifest(t) })
	t.Run("a mistake in a manifest is found", func(t *testing.T) { s.requireMistakesFound(t) })
}

func (s *schemas) checkEveryManifest(t *testing.T) {
	for _, dir := range overlays(t) {
		for _, o := range render(t, dir) {
			require.NoError(t, s.check(o), "%s: %s", dir, id(o))
		}
	}
	for _, o := range readYAML(t, "knative/overlays/production/secrets.example.yaml") {
		require.NoError(t, s.check(o), id(o))
	}
	require.NoError(t, s.checkAgainst(s.urls["compose"], readCompose(t)))
}

// requireMistakesFound requires that check fails for each of these mistakes in the overlay eventing. A mistake is
// "apiVersion kind path value": the object of this kind with this value at this path.
func (s *schemas) requireMistakesFound(t *testing.T) {
	for _, mistake := range []string{
		"serving.knative.dev/v1 Service /spec/template/spec/timeoutSecond 30",
		"serving.knative.dev/v1 Service /spec/template/spec/containerConcurrency many",
		"serving.knative.dev/v1 Service /spec/template/spec/containers/0/imagePullPolicie Always",
		"apps/v1 Deployment /spec/template/spec/containers/0/argz [x]",
		"apps/v1 Deployment /metadata/label x",
		"batch/v1 Job /spec/backoffLimit often",
		"gateway.networking.k8s.io/v1 HTTPRoute /spec/rules/0/filters/0/type Rewrite",
		"networking.k8s.io/v1 NetworkPolicy /spec/policyType [Egress]",
		"policy/v1 PodDisruptionBudget /spec/minAvailabel 1",
		"postgresql.cnpg.io/v1 Cluster /spec/postgresql/synchronous/method some",
		"postgresql.cnpg.io/v1 Pooler /spec/pgbouncer/poolMode statements",
		"sources.knative.dev/v1 PingSource /spec/cron x",
	} {
		version, rest, _ := strings.Cut(mistake, " ")
		kind, rest, _ := strings.Cut(rest, " ")
		path, value, _ := strings.Cut(rest, " ")
		var parsed any
		require.NoError(t, yaml.Unmarshal([]byte(value), &parsed))
		all := render(t, "knative/overlays/eventing")
		i := slices.IndexFunc(all, func(o object) bool { return o["apiVersion"] == version && o["kind"] == kind })
		require.GreaterOrEqual(t, i, 0, mistake)
		steps := operation{Path: path}.steps()
		at(all[i], steps[:len(steps)-1]...).(object)[text(steps[len(steps)-1])] = parsed
		require.Error(t, s.check(all[i]), mistake)
	}
}
