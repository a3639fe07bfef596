package storetest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/store"
)

// Statements returns every constant of the store and its packages whose name ends with SQL. It finds the constants that these
// consist of by their names alone, so each name must be unique in all packages. Constants of other packages, and conversions,
// count as empty texts.
func Statements(t *testing.T) map[string]string {
	t.Helper()
	root, err := os.Getwd() // of the test: shared/store, or a package in it
	require.NoError(t, err)
	if filepath.Base(root) != "store" {
		root = filepath.Dir(root)
	}
	storeFiles, err := filepath.Glob(filepath.Join(root, "*.go"))
	require.NoError(t, err)
	packageFiles, err := filepath.Glob(filepath.Join(root, "*", "*.go"))
	require.NoError(t, err)
	exprs := map[string]ast.Expr{}
	for _, path := range append(storeFiles, packageFiles...) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			if g, ok := decl.(*ast.GenDecl); ok && g.Tok == token.CONST {
				for _, spec := range g.Specs {
					v := spec.(*ast.ValueSpec)
					for i, name := range v.Names {
						if i < len(v.Values) {
							exprs[name.Name] = v.Values[i]
						}
					}
				}
			}
		}
	}
	var text func(e ast.Expr) string
	text = func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			if s, err := strconv.Unquote(e.Value); err == nil {
				return s
			}
		case *ast.BinaryExpr:
			return text(e.X) + text(e.Y)
		case *ast.Ident:
			return text(exprs[e.Name])
		case *ast.SelectorExpr: // a constant of another package
			return text(exprs[e.Sel.Name])
		}
		return ""
	}
	all := map[string]string{}
	for name, e := range exprs {
		if strings.HasSuffix(name, "SQL") {
			all[name] = text(e)
		}
	}
	return all
}

// Plans checks the plans of a set of statements.
type Plans struct {
	Fill   string            // SQL that fills the tables
	Args   map[string]string // the names of the statements to check, with their arguments for EXECUTE
	Texts  map[string]string // by name: statements that are not among Statements
	Tables []string          // tables for which no plan may have a sequential scan
	Index  map[string]string // by statement: an index that its plan must use

	Generic   []string // statements with a generic plan (store.PlanOnceSQL)
	NoSort    []string // statements that must not sort
	Presorted []string // statements that may sort only rows that are equal in an index (Incremental Sort)
}

// Require prepares and runs the statements while the tables are empty, and fills the tables without
// ANALYZE. Then it fails the test if a new plan has a sequential scan of one of Tables or a bitmap scan,
// does not use its Index, or sorts against NoSort or Presorted. The statements have the settings of the
// role hot.
func (p Plans) Require(t *testing.T) {
	t.Helper()
	url := sandbox.NewDatabase(t)
	conn, all := ConnectWithSettingsOf(t, url, sandbox.Roles.Hot), Statements(t)
	maps.Copy(all, p.Texts)
	execute := func(name string) string {
		if args := p.Args[name]; args != "" {
			return "execute " + name + "(" + args + ")"
		}
		return "execute " + name
	}
	_, err := ConnectAsOwner(t, url).Exec(t.Context(), `vacuum analyze`)
	require.NoError(t, err)
	setPlanMode := func(name string) {
		mode := "force_custom_plan"
		if slices.Contains(p.Generic, name) {
			mode = "force_generic_plan"
		}
		_, err := conn.Exec(t.Context(), `set plan_cache_mode = `+mode)
		require.NoError(t, err)
	}
	for name := range p.Args {
		setPlanMode(name)
		_, err := conn.Exec(t.Context(), `prepare `+name+` as `+all[name])
		require.NoError(t, err, name)
		for range 10 {
			_, err = conn.Exec(t.Context(), execute(name))
			require.NoError(t, err, name)
		}
	}
	fill := "set session_replication_role = replica;" // skips foreign keys and triggers
	for _, table := range p.Tables {
		fill += "alter table " + table + " set (autovacuum_enabled = off);"
	}
	_, err = ConnectAsOwner(t, url).Exec(t.Context(), fill+p.Fill)
	require.NoError(t, err)
	for name := range p.Args {
		setPlanMode(name)
		lines, err := store.QueryRows(t.Context(), conn, pgx.RowTo[string], `explain `+execute(name))
		require.NoError(t, err, name)
		plan := strings.Join(lines, "\n")
		for _, table := range p.Tables {
			require.NotContains(t, plan, "Seq Scan on "+table, "%s\n%s", name, plan)
		}
		require.NotContains(t, plan, "Bitmap Heap Scan", "%s\n%s", name, plan)
		require.Contains(t, plan, p.Index[name], "%s\n%s", name, plan)
		if slices.Contains(p.NoSort, name) {
			require.NotContains(t, plan, "Sort", "%s\n%s", name, plan)
		}
		if slices.Contains(p.Presorted, name) {
			require.Contains(t, plan, "Presorted Key", "%s\n%s", name, plan)
		}
	}
}

// AnID is the id of no row, and SomeIDs an array of such ids, as SQL.
const (
	AnID    = "'018f0000-0000-7000-8000-000000000000'"
	SomeIDs = "array[" + AnID + "::uuid]"
)
