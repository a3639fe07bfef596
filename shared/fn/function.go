package fn

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/task"
)

// A Function is one function of Sendonce; functions/catalogue.go lists all functions. Make a Function
// with HTTP, Event or EventBatch.
type Function struct {
	Name     string
	settings []config.Setting
	uses     []Function                                              // see CallsRoutesOf
	load     func() (start func(*Env) Routes, problems []task.Field) // reads the settings of the function
}

// Routes maps patterns of net/http, method and full path included
// ("POST /api/v1/sms/send"), to their handlers.
type Routes map[string]Route

// HTTP makes a function with routes. C is the configuration of the function: a struct whose fields have
// the tags that package config describes, or struct{} if the function has no settings. build runs once
// when the process starts, and must not use the network.
func HTTP[C any](name string, build func(*Env, C) Routes) Function {
	return Function{
		Name:     name,
		settings: config.Settings[C](),
		load: func() (func(*Env) Routes, []task.Field) {
			var cfg C
			problems := config.Load(&cfg)
			return func(env *Env) Routes { return build(env, cfg) }, problems
		},
	}
}

// CallsRoutesOf names the other functions whose routes the pages of f call with Visit.API, within the process. A
// process that serves f builds all of these functions. Those that it does not serve can be called only by its pages.
func (f Function) CallsRoutesOf(others ...Function) Function { f.uses = others; return f }

// builtFunction is a function with its routes.
type builtFunction struct {
	name      string
	routes    Routes
	inProcess bool // only the pages of this process can call its routes
}

func build(env *Env, functions []Function) ([]builtFunction, error) {
	servedCount := len(functions)
	functions = withUsed(functions)
	starts, problems := load(functions)
	if len(problems) > 0 {
		return nil, config.Error(problems)
	}
	all := make([]builtFunction, len(functions))
	for i, f := range functions {
		if slices.ContainsFunc(functions[:i], func(g Function) bool { return g.Name == f.Name }) {
			return nil, fmt.Errorf("two functions are named %s", f.Name)
		}
		all[i] = builtFunction{name: f.Name, routes: starts[i](env), inProcess: i >= servedCount}
	}
	return all, nil
}

// withUsed returns the served functions, followed by the other functions that these use (see CallsRoutesOf).
func withUsed(served []Function) []Function {
	all := slices.Clone(served)
	for _, f := range served {
		for _, used := range f.uses {
			if !slices.ContainsFunc(all, func(g Function) bool { return g.Name == used.Name }) {
				all = append(all, used)
			}
		}
	}
	return all
}

// load reads the settings of all these functions and starts none, so that all bad settings are reported at once.
func load(functions []Function) (starts []func(*Env) Routes, problems []task.Field) {
	for _, f := range functions {
		start, bad := f.load()
		starts = append(starts, start)
		problems = append(problems, bad...)
	}
	return starts, problems
}

// AllFunctions is a value of FUNCTION_TARGET: the process serves all functions. An empty value does the same, but
// the functions framework needs a name.
const AllFunctions = "sendonce"

// target returns the functions that this process serves. name is the value of FUNCTION_TARGET.
func target(name string, functions []Function) ([]Function, []task.Field) {
	if name == "" || name == AllFunctions {
		return functions, nil
	}
	names := make([]string, len(functions))
	for i, f := range functions {
		if f.Name == name {
			return functions[i : i+1], nil
		}
		names[i] = f.Name
	}
	sort.Strings(names)
	return nil, []task.Field{{Name: "FUNCTION_TARGET", Message: fmt.Sprintf("is %q but must be the name of a function: %s", name, strings.Join(names, ", "))}}
}

func validPattern(pattern string) bool {
	method, path, _ := strings.Cut(pattern, " ")
	return slices.Contains([]string{"GET", "POST", "PUT", "PATCH", "DELETE"}, method) && strings.HasPrefix(path, "/") && !strings.Contains(path, " ")
}

// Patterns returns every pattern of the functions' API with its roles. A caller needs one of the roles.
// Patterns fails if a setting is bad.
func Patterns(env *Env, functions ...Function) (map[string][]Role, error) {
	roles := map[string][]Role{}
	err := eachRoute(env, functions, func(pattern string, route Route) {
		if route.page == nil {
			roles[pattern] = route.roles
		}
	})
	return roles, err
}

// PagePatterns returns every pattern of the functions' pages for browsers, sorted. It fails if a setting is bad.
func PagePatterns(env *Env, functions ...Function) (patterns []string, err error) {
	err = eachRoute(env, functions, func(pattern string, route Route) {
		if route.page != nil {
			patterns = append(patterns, pattern)
		}
	})
	sort.Strings(patterns)
	return patterns, err
}

// eachRoute calls visit for each route of the functions, but not for routes of functions that are only used (see
// CallsRoutesOf).
func eachRoute(env *Env, functions []Function, visit func(pattern string, route Route)) error {
	built, err := build(env, functions)
	if err != nil {
		return err
	}
	for _, f := range built {
		if f.inProcess {
			continue
		}
		for pattern, route := range f.routes {
			visit(pattern, route)
		}
	}
	return nil
}
