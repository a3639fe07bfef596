package deploy

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
)

// kustomization has the fields of a kustomization.yaml that refer to objects.
type kustomization struct {
	Resources []string `yaml:"resources"`
	Images    []struct {
		Name string `yaml:"name"`
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
	Op   string `yaml:"op"`
	Path string `yaml:"path"`
}

// unmatched lists mistakes that kustomize does not report: patches and images that match no object, and replacements of
// fields that do not exist. before has the objects before the patches.
func (k kustomization) unmatched(before []object, patch func(path string) []operation) (wrong []string) {
	for _, p := range k.Patches {
		matches := 0
		for _, o := range before {
			group, _, grouped := strings.Cut(text(o, "apiVersion"), "/")
			if !grouped {
				group = ""
			}
			if text(o, "kind") != p.Target.Kind || group != p.Target.Group || p.Target.Name != "" && text(o, "metadata", "name") != p.Target.Name {
				continue
			}
			matches++
			for _, step := range patch(p.Path) {
				if step.Op == "replace" && at(o, step.steps()...) == nil {
					wrong = append(wrong, fmt.Sprintf("%s: %s has no %s", p.Path, id(o), step.Path))
				}
			}
		}
		if matches == 0 {
			wrong = append(wrong, fmt.Sprintf("%s patches nothing", p.Path))
		}
	}
	for _, image := range k.Images {
		if !hasImage(before, image.Name) {
			wrong = append(wrong, fmt.Sprintf("no container has the image %s", image.Name))
		}
	}
	return wrong
}

// steps returns the path as arguments of at.
func (o operation) steps() (steps []any) {
	for part := range strings.SplitSeq(strings.TrimPrefix(o.Path, "/"), "/") {
		if index, err := strconv.Atoi(part); err == nil {
			steps = append(steps, index)
		} else {
			steps = append(steps, strings.NewReplacer("~1", "/", "~0", "~").Replace(part))
		}
	}
	return steps
}

func hasImage(all []object, name string) (found bool) {
	walk(all, func(o object) { found = found || o["image"] == name })
	return found
}

// kustomize runs the version of kustomize in scripts/tools/go.mod.
func kustomize(dir string) ([]byte, error) {
	cmd := exec.Command("go", "tool", "-modfile=../scripts/tools/go.mod", "kustomize", "build", dir)
	out, err := cmd.Output()
	if failed := new(exec.ExitError); errors.As(err, &failed) {
		err = fmt.Errorf("kustomize build %s: %w\n%s", dir, err, failed.Stderr)
	}
	return out, err
}

var rendered sync.Map // of func() ([]object, error), by folder

// render returns a copy of the objects that kustomize makes of a folder. It runs kustomize once for each folder.
func render(t *testing.T, dir string) (objects cluster) {
	t.Helper()
	build, _ := rendered.LoadOrStore(dir, sync.OnceValues(func() ([]object, error) {
		out, err := kustomize(dir)
		if err != nil {
			return nil, err
		}
		return parse(out)
	}))
	all, err := build.(func() ([]object, error))()
	require.NoError(t, err)
	for _, o := range all {
		objects = append(objects, clone(o).(object))
	}
	return objects
}

// clone returns a deep copy.
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

func id(o object) string {
	return strings.Join([]string{text(o, "apiVersion"), text(o, "kind"), text(o, "metadata", "namespace"), text(o, "metadata", "name")}, " ")
}

// overlays returns the folders that can be applied to a cluster.
func overlays(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("knative/overlays/*")
	require.NoError(t, err)
	require.Len(t, dirs, 3)
	return dirs
}

// readKustomization returns a kustomization with the objects before its patches.
func readKustomization(t *testing.T, dir string) (k kustomization, before []object) {
	t.Helper()
	require.NoError(t, yaml.Unmarshal([]byte(readFile(t, filepath.Join(dir, "kustomization.yaml"))), &k))
	for _, resource := range k.Resources {
		path := filepath.Join(dir, resource)
		if filepath.Ext(path) == ".yaml" {
			before = append(before, readYAML(t, path)...)
		} else {
			before = append(before, render(t, path)...)
		}
	}
	return k, before
}

func TestEveryPatchAndImageMatches(t *testing.T) {
	t.Parallel()
	for _, dir := range append(overlays(t), "knative/base", "knative/nats", "knative/postgres") {
		patch := func(path string) (steps []operation) {
			require.NoError(t, yaml.Unmarshal([]byte(readFile(t, filepath.Join(dir, path))), &steps))
			require.NotEmpty(t, steps, path)
			return steps
		}
		k, before := readKustomization(t, dir)
		require.Empty(t, k.unmatched(before, patch), dir)

		misspelt := func(string) []operation { return []operation{{Op: "replace", Path: "/metadata/nam"}} }
		require.GreaterOrEqual(t, len(k.unmatched(before, misspelt)), len(k.Patches), dir)
		for i := range k.Patches {
			k.Patches[i].Target.Name = "absent"
		}
		for i := range k.Images {
			k.Images[i].Name = "absent"
		}
		require.Len(t, k.unmatched(before, patch), len(k.Patches)+len(k.Images), dir)
	}
}
