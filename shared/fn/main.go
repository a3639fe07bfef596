package fn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/task"
)

// A Word is something else that the binary does, as `sendonce migrate`. Its
// Env has the settings and, where DATABASE_URL is set, the database.
type Command struct {
	Name string
	Help string // one line, for `sendonce help`
	Run  func(ctx context.Context, env *Env, args []string) error

	settings []config.Setting
}

// NewCommand makes a command that takes no arguments and has settings of its own: C
// is a struct as for HTTP.
func NewCommand[C any](name, help string, run func(ctx context.Context, env *Env, cfg C) error) Command {
	return Command{Name: name, Help: help, settings: config.Settings[C](), Run: func(ctx context.Context, env *Env, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("%s takes no arguments", name)
		}
		var cfg C
		if problems := config.Load(&cfg); len(problems) > 0 {
			return config.Error(problems)
		}
		return run(ctx, env, cfg)
	}}
}

// Main is the binary: args[0] picks what it does, serving the functions when
// there is none. It gives the exit code: 0 done or drained, 1 failed, 2 wrong
// settings or an unknown command. SIGTERM and SIGINT end ctx; a second one kills.
func Main(ctx context.Context, args []string, commands []Command, functions ...Function) int {
	commands = append([]Command{
		{Name: "serve", Help: "answer calls (the default)"},
		{Name: "config", Help: "list every setting as a table"},
		{Name: "version", Help: "say which version this is"},
		{Name: "routes", Help: "list every call with the function that answers it, as a table", Run: listRoutes(functions)},
		{Name: "hash-password", Help: "read the built-in admin's password from standard input and print what to set as BASIC_AUTH_PASSWORD_HASH: [iterations]", Run: printPasswordHash},
		NewCommand("health", "check the server of this container: exit code 0 or 1", checkHealth),
	}, commands...)
	name := "serve"
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	command, known := findCommand(commands, name)
	switch {
	case name == "help" || name == "-h" || name == "--help":
		usage(os.Stdout, commands)
		return 0
	case !known:
		fmt.Fprintf(os.Stderr, "sendonce: unknown command %q\n", name)
		usage(os.Stderr, commands)
		return 2
	case command.Run == nil && len(args) > 0:
		fmt.Fprintf(os.Stderr, "sendonce: %s takes no arguments\n", name)
		return 2
	case name == "config":
		fmt.Print(ConfigTable(commands, functions...))
		return 0
	case name == "version":
		fmt.Println(Version())
		return 0
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, stop)
	env, served, err := prepare(commands, functions, command.Run == nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sendonce cannot start:", err)
		return 2
	}
	defer env.Close()
	if command.Run != nil {
		err = command.Run(ctx, env, args)
	} else {
		err = serveAll(ctx, env, served)
	}
	var wrong config.Error
	switch {
	case errors.As(err, &wrong):
		fmt.Fprintln(os.Stderr, "sendonce cannot start:", err)
		return 2
	case err != nil:
		env.Log.Error(name+" failed", "cause", err.Error())
		return 1
	}
	return 0
}

// prepare reads the settings and finds all that is wrong with them before
// anything starts.
func prepare(commands []Command, functions []Function, serving bool) (*Env, []Function, error) {
	cfg, problems := configFromEnvironment(commands, functions)
	var served []Function
	if serving {
		var bad []task.Field
		served, bad = target(cfg.FunctionTarget, functions)
		problems = append(problems, bad...)
		_, bad = open(served)
		problems = append(problems, bad...)
		problems = append(problems, cfg.missingToServe(served)...)
	}
	level := slog.LevelInfo
	if cfg.Debug {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	env, err := NewEnv(cfg, log)
	var setting *bus.SettingError
	if errors.As(err, &setting) {
		problems = append(problems, task.Field{Name: setting.Name, Message: setting.Message})
	} else if err != nil {
		problems = append(problems, task.Field{Name: "DATABASE_URL", Message: strings.TrimPrefix(err.Error(), "DATABASE_URL: ")})
	} else if len(problems) > 0 {
		env.Close()
	}
	if len(problems) > 0 {
		return nil, nil, config.Error(problems)
	}
	return env, served, nil
}

func serveAll(ctx context.Context, env *Env, functions []Function) error {
	limitMemory(&env.Config)
	h, err := assemble(ctx, env, functions)
	if err != nil {
		return err
	}
	l, err := listen(ctx, &env.Config)
	if err != nil {
		return err
	}
	if err := env.serveMetrics(ctx); err != nil {
		return err
	}
	return Serve(ctx, env, l, h)
}

// assemble is Handler for a process that starts to serve: it also fails when a
// stream gives less than the settings promise.
func assemble(ctx context.Context, env *Env, functions []Function) (http.Handler, error) {
	h, err := Handler(env, functions...)
	if err != nil {
		return nil, err
	}
	if err := verifyDurability(ctx, env); err != nil {
		return nil, err
	}
	return h, nil
}

func findCommand(commands []Command, name string) (Command, bool) {
	for _, w := range commands {
		if w.Name == name {
			return w, true
		}
	}
	return Command{}, false
}

func usage(w io.Writer, commands []Command) {
	fmt.Fprintln(w, "usage: sendonce [command]")
	for _, command := range commands {
		fmt.Fprintf(w, "  %-13s %s\n", command.Name, command.Help)
	}
}
