package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
)

// kustomization is the part of kustomize that the manifests use. Whatever else
// stands in a file fails the test instead of being passed over.
type kustomization struct {
	APIVersion string   `yaml:"apiVersion"`
	Kind       string   `yaml:"kind"`
	Resources  []string `yaml:"resources"`
	Images     []struct {
		Name    string `yaml:"name"`
		NewName string `yaml:"newName"`
		NewTag  string `yaml:"newTag"`
	} `yaml:"images"`
	Patches []struct {
		Path   string `yaml:"path"`
		Target struct {
			Group string `yaml:"group"`
			Kind  string `yaml:"kind"`
			Name  string `yaml:"name"`
		} `yaml:"target"`
	} `yaml:"patches"`
}

// operation is one step of a JSON patch (RFC 6902).
type operation struct {
	Op    string `yaml:"op"`
	Path  string `yaml:"path"`
	Value any    `yaml:"value"`
}

func strictly(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, yaml.Load(text, into, yaml.WithKnownFields()), path)
}

// render gives the objects that `kubectl kustomize dir` prints, in the order of
// the files.
func render(t *testing.T, dir string) []object {
	t.Helper()
	var k kustomization
	strictly(t, filepath.Join(dir, "kustomization.yaml"), &k)
	var all []object
	for _, resource := range k.Resources {
		path := filepath.Join(dir, resource)
		info, err := os.Stat(path)
		require.NoError(t, err)
		if info.IsDir() {
			all = append(all, render(t, path)...)
		} else {
			all = append(all, readYAML(t, path)...)
		}
	}
	for _, p := range k.Patches {
		var steps []operation
		strictly(t, filepath.Join(dir, p.Path), &steps)
		patched := 0
		for _, o := range all {
			group, _, grouped := strings.Cut(text(o, "apiVersion"), "/")
			if !grouped {
				group = ""
			}
			if text(o, "kind") != p.Target.Kind || group != p.Target.Group || p.Target.Name != "" && text(o, "metadata", "name") != p.Target.Name {
				continue
			}
			patched++
			for _, s := range steps {
				require.NoError(t, s.apply(o), "%s: %s", p.Path, s.Path)
			}
		}
		require.Positive(t, patched, "%s patches nothing", p.Path)
	}
	for _, image := range k.Images {
		require.Positive(t, rename(all, image.Name, image.NewName+":"+image.NewTag), "no container has the image %s", image.Name)
	}
	return all
}

// apply changes o. A replaced place must be there already, as RFC 6902 says.
func (s operation) apply(o object) error {
	parts := strings.Split(strings.TrimPrefix(s.Path, "/"), "/")
	for i, part := range parts {
		parts[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
	}
	last := parts[len(parts)-1]
	var node any = o
	for i, part := range parts[:len(parts)-1] {
		step := any(part)
		if index, err := strconv.Atoi(part); err == nil {
			step = index
		}
		inner := at(node, step)
		if inner == nil {
			return fmt.Errorf("there is no %s", part)
		}
		if grown, isList := inner.([]any); isList && i == len(parts)-2 && last == "-" && s.Op == "add" {
			node.(object)[part] = append(slices.Clip(grown), clone(s.Value))
			return nil
		}
		node = inner
	}
	parent, ok := node.(object)
	_, there := parent[last]
	switch {
	case !ok:
		return fmt.Errorf("cannot change an item of a list")
	case s.Op == "replace" && !there:
		return fmt.Errorf("there is nothing to replace")
	case s.Op != "add" && s.Op != "replace":
		return fmt.Errorf("unknown operation %q", s.Op)
	}
	parent[last] = clone(s.Value)
	return nil
}

// clone keeps objects that one patch has touched apart.
func clone(value any) any {
	switch v := value.(type) {
	case object:
		copied := object{}
		for name, inner := range v {
			copied[name] = clone(inner)
		}
		return copied
	case []any:
		copied := make([]any, len(v))
		for i, inner := range v {
			copied[i] = clone(inner)
		}
		return copied
	}
	return value
}

// rename gives the containers of an image another one and counts them.
func rename(node any, from, to string) int {
	n := 0
	switch v := node.(type) {
	case []object:
		for _, inner := range v {
			n += rename(inner, from, to)
		}
	case []any:
		for _, inner := range v {
			n += rename(inner, from, to)
		}
	case object:
		for _, inner := range v {
			n += rename(inner, from, to)
		}
		if v["image"] == from {
			v["image"] = to
			n++
		}
	}
	return n
}

func id(o object) string {
	return strings.Join([]string{text(o, "apiVersion"), text(o, "kind"), text(o, "metadata", "namespace"), text(o, "metadata", "name")}, " ")
}

// overlays are the folders that somebody may apply.
func overlays(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("knative/overlays/*")
	require.NoError(t, err)
	require.Len(t, dirs, 3)
	return dirs
}

func TestWeRenderAsKubectlDoes(t *testing.T) {
	t.Parallel()
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("there is no kubectl to compare with")
	}
	for _, dir := range overlays(t) {
		out, err := exec.CommandContext(t.Context(), kubectl, "kustomize", dir).Output()
		require.NoError(t, err, dir)
		want := map[string]any{}
		for _, o := range parseYAML(t, dir, out) {
			want[id(o)] = asJSON(t, o)
		}
		got := map[string]any{}
		for _, o := range render(t, dir) {
			require.NotContains(t, got, id(o), "twice")
			got[id(o)] = asJSON(t, o)
		}
		require.Equal(t, want, got, dir)
	}
}

func TestAPatchThatDoesNotFitIsRefused(t *testing.T) {
	t.Parallel()
	o := object{"a": object{"b": "c", "list": []any{"x"}}}
	require.NoError(t, operation{Op: "add", Path: "/a/list/-", Value: "y"}.apply(o))
	require.NoError(t, operation{Op: "add", Path: "/a/x~1y", Value: 1}.apply(o))
	require.NoError(t, operation{Op: "replace", Path: "/a/b", Value: "d"}.apply(o))
	require.Equal(t, object{"a": object{"b": "d", "x/y": 1, "list": []any{"x", "y"}}}, o)
	require.Error(t, operation{Op: "replace", Path: "/a/missing", Value: 1}.apply(o))
	require.Error(t, operation{Op: "add", Path: "/no/where", Value: 1}.apply(o))
	require.Error(t, operation{Op: "remove", Path: "/a/b"}.apply(o))
}

// asJSON brings numbers of one value but different types together.
func asJSON(t *testing.T, value any) any {
	t.Helper()
	text, err := json.Marshal(value)
	require.NoError(t, err)
	var plain any
	require.NoError(t, json.Unmarshal(text, &plain))
	return plain
}
