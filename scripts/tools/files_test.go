package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goPackage is a package in the output of `go list`, with the fields that the test needs.
type goPackage struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	DepOnly                 bool // the package is not one of Sendonce
}

// listPackages returns the packages of Sendonce, and all packages that they import directly or indirectly.
func listPackages(t *testing.T) (packages []goPackage) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-trimpath", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly", "./...")
	cmd.Dir, cmd.Env, cmd.Stderr = "../..", append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// uses[file][other][name] is true if the file uses a name that the other file declares.
type uses map[string]map[string]map[string]bool

// fileUses returns which files of a package use which others. The caller has parsed the files with fset.
func fileUses(fset *token.FileSet, imports types.Importer, path string, files []*ast.File) (uses, error) {
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	pkg, err := (&types.Config{Importer: imports}).Check(path, fset, files, &info)
	if err != nil {
		return nil, err
	}
	fileOf := func(p token.Pos) string { return filepath.Base(fset.Position(p).Filename) }
	found := uses{}
	for id, object := range info.Uses {
		from, to := fileOf(id.Pos()), fileOf(object.Pos())
		if object.Pkg() != pkg || from == to {
			continue
		}
		if found[from] == nil {
			found[from] = map[string]map[string]bool{}
		}
		if found[from][to] == nil {
			found[from][to] = map[string]bool{}
		}
		found[from][to][object.Name()] = true
	}
	return found, nil
}

// cycle returns a shortest cycle of files that use each other, with the names that they use; nil if there is none.
func (u uses) cycle() (shortest []string) {
	for _, start := range slices.Sorted(maps.Keys(u)) {
		previous := map[string]string{}
		for queue := []string{start}; len(queue) > 0; queue = queue[1:] {
			for _, next := range slices.Sorted(maps.Keys(u[queue[0]])) {
				if _, seen := previous[next]; !seen {
					previous[next] = queue[0]
					queue = append(queue, next)
				}
			}
		}
		if previous[start] == "" {
			continue
		}
		var path []string
		for to := start; len(path) == 0 || to != start; to = previous[to] {
			names := slices.Sorted(maps.Keys(u[previous[to]][to]))
			path = append(path, previous[to]+" uses "+strings.Join(names, ", ")+" of "+to)
		}
		if slices.Reverse(path); shortest == nil || len(path) < len(shortest) {
			shortest = path
		}
	}
	return shortest
}

// The files of a package are in layers: a reader who follows names from file to file never comes back to an earlier file.
func TestFilesOfAPackageUseEachOtherOneWay(t *testing.T) {
	packages := listPackages(t)
	exportFiles := map[string]string{}
	for _, p := range packages {
		exportFiles[p.ImportPath] = p.Export
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exportFiles[path]) })
	checked := 0
	for _, p := range packages {
		if p.DepOnly {
			continue
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		found, err := fileUses(fset, imports, p.ImportPath, files)
		if err != nil {
			t.Fatal(err)
		}
		if cycle := found.cycle(); cycle != nil {
			t.Errorf("%s: files use each other in a cycle; move a declaration to a lower file:\n\t%s", p.ImportPath, strings.Join(cycle, "\n\t"))
		}
		checked++
	}
	if checked < 50 {
		t.Fatalf("only %d packages were checked", checked)
	}
}

func TestACycleOfFilesIsFound(t *testing.T) {
	fset := token.NewFileSet()
	var files []*ast.File
	for name, text := range map[string]string{"a.go": "func a() { b() }", "b.go": "func b() { c.d() }", "c.go": "type t int\nvar c t", "d.go": "func (t) d() { a() }"} {
		file, err := parser.ParseFile(fset, name, "package p\n"+text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	found, err := fileUses(fset, nil, "p", files)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a.go uses b of b.go", "b.go uses d of d.go", "d.go uses a of a.go"}
	if got := found.cycle(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
