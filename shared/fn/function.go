package fn

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sort"
	"strings"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/task"
)

// A Role is what a caller may do. Admin may do everything, unless it has queues (see
// Route.WithinQueues).
type Role string

// The roles of the wire contract, as stored in callers.
const (
	Submitter Role = "submitter"
	Sender    Role = "sender"
	Receiver  Role = "receiver"
	Trigger   Role = "trigger"
	Admin     Role = "admin"
)

// A Function is one line of the catalogue in functions/functions.go. Make it with
// HTTP or Event.
type Function struct {
	Name     string
	settings []config.Setting
	open     func() (start func(*Env) Routes, problems []task.Field)
}

// Routes maps patterns of net/http, method and full path included
// ("POST /api/v1/sms/send"), to what answers them.
type Routes map[string]Route

// EventHandler handles one CloudEvent. nil acknowledges it; Poison keeps it as a dead letter;
// a *task.Error whose status is 4xx refuses it permanently; after any other error it is
// delivered again. It must be idempotent: an event may be delivered twice.
type EventHandler func(ctx context.Context, c *Call, e cloudevents.Event) error

// HTTP makes a function that answers routes. C is its configuration: a struct
// with the tags envconfig, default and desc on each field, struct{} when it
// has none. build runs once per cold start and must not touch the network.
func HTTP[C any](name string, build func(*Env, C) Routes) Function {
	return Function{
		Name:     name,
		settings: config.Settings[C](),
		open: func() (func(*Env) Routes, []task.Field) {
			var cfg C
			problems := config.Load(&cfg)
			return func(env *Env) Routes { return build(env, cfg) }, problems
		},
	}
}

// Event makes a function that takes CloudEvents, served at POST /events/{name}
// to callers with the role Trigger. C and build are as for HTTP.
func Event[C any](name string, build func(*Env, C) EventHandler) Function {
	return HTTP(name, func(env *Env, cfg C) Routes {
		return Routes{"POST /events/" + name: eventRoute{env: env, name: name, handle: build(env, cfg)}.route()}
	})
}

// EventBatch is Event for a function that also takes batches of events.
func EventBatch[C any](name string, build func(*Env, C) (EventHandler, BatchHandler)) Function {
	return HTTP(name, func(env *Env, cfg C) Routes {
		one, many := build(env, cfg)
		return Routes{"POST /events/" + name: eventRoute{env: env, name: name, handle: one, batch: many}.route()}
	})
}

// Handler gives everything that stands around the functions as one handler:
// what the binary serves, and what a test puts behind httptest. It fails when
// a setting is bad or two functions claim one pattern.
func Handler(env *Env, functions ...Function) (http.Handler, error) {
	built, err := build(env, functions)
	if err != nil {
		return nil, err
	}
	return newMux(env, built)
}

// builtFunction is a function after its cold start.
type builtFunction struct {
	name   string
	routes Routes
}

func build(env *Env, functions []Function) ([]builtFunction, error) {
	starts, problems := open(functions)
	if len(problems) > 0 {
		return nil, config.Error(problems)
	}
	all := make([]builtFunction, len(functions))
	for i, f := range functions {
		if slices.ContainsFunc(functions[:i], func(g Function) bool { return g.Name == f.Name }) {
			return nil, fmt.Errorf("two functions are named %s", f.Name)
		}
		all[i] = builtFunction{name: f.Name, routes: starts[i](env)}
	}
	return all, nil
}

// open reads the settings of all functions, so that every bad one is reported at
// once, before any function starts.
func open(functions []Function) (starts []func(*Env) Routes, problems []task.Field) {
	for _, f := range functions {
		start, bad := f.open()
		starts = append(starts, start)
		problems = append(problems, bad...)
	}
	return starts, problems
}

// AllFunctions is the FUNCTION_TARGET that means all functions, as an empty one
// does. The functions framework serves nothing without a name.
const AllFunctions = "sendonce"

// target picks the functions that this process serves: all of them, or the one
// that FUNCTION_TARGET names.
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
	return nil, []task.Field{{Name: "FUNCTION_TARGET", Message: fmt.Sprintf("%q names no function; there are: %s", name, strings.Join(names, ", "))}}
}

func validPattern(pattern string) bool {
	method, path, _ := strings.Cut(pattern, " ")
	return slices.Contains([]string{"GET", "POST", "PUT", "PATCH", "DELETE"}, method) && strings.HasPrefix(path, "/") && !strings.Contains(path, " ")
}

// Patterns gives every pattern that the functions answer, with the roles of which
// its callers need one. It fails as Handler does.
func Patterns(env *Env, functions ...Function) (map[string][]Role, error) {
	built, err := build(env, functions)
	if err != nil {
		return nil, err
	}
	roles := map[string][]Role{}
	for _, f := range built {
		for pattern, route := range f.routes {
			roles[pattern] = route.roles
		}
	}
	return roles, nil
}
