package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/fn"
)

// Main runs the command args[0], or serve if args is empty, and returns the exit code.
func Main(ctx context.Context, args []string, commands []Command, functions ...fn.Function) int {
	commands = append([]Command{
		{Name: "serve", Help: "serve the functions (the default)"},
		{Name: "config", Help: "print a table of all settings"},
		{Name: "version", Help: "print the version"},
		{Name: "routes", Help: "print a table of all routes and their functions", Run: listRoutes(functions)},
		{Name: "hash-password", Help: "[iterations]: read the built-in admin's password from standard input and print the value of BASIC_AUTH_PASSWORD_HASH", Run: printPasswordHash},
		New("health", "check the health of the server in this container: exit code 0 or 1", checkHealth),
	}, commands...)
	name := "serve"
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	if name == "help" || name == "-h" || name == "--help" {
		printUsage(os.Stdout, commands)
		return 0
	}
	i := slices.IndexFunc(commands, func(c Command) bool { return c.Name == name })
	if i < 0 {
		fmt.Fprintf(os.Stderr, "sendonce: unknown command %q\n", name)
		printUsage(os.Stderr, commands)
		return 2
	}
	run := commands[i].Run
	switch {
	case run == nil && len(args) > 0:
		fmt.Fprintf(os.Stderr, "sendonce: %s takes no arguments\n", name)
		return 2
	case name == "config":
		fmt.Print(ConfigTable(commands, functions...))
		return 0
	case name == "version":
		fmt.Println(fn.Version())
		return 0
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, stop)
	env, served, err := fn.Prepare(SettingsReaders(commands), functions, run == nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sendonce cannot start:", err)
		return 2
	}
	defer env.Close()
	if run != nil {
		err = run(ctx, env, args)
	} else {
		err = fn.ListenAndServe(ctx, env, served)
	}
	var wrongSettings config.Error
	switch {
	case errors.As(err, &wrongSettings):
		fmt.Fprintln(os.Stderr, "sendonce cannot start:", err)
		return 2
	case err != nil:
		env.Log.Error(name+" failed", "cause", err.Error())
		return 1
	}
	return 0
}

func printUsage(w io.Writer, commands []Command) {
	fmt.Fprintln(w, "usage: sendonce [command]")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-13s %s\n", c.Name, c.Help)
	}
}
