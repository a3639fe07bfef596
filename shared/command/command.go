package command

import (
	"context"
	"fmt"

	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/fn"
)

// A Command is a subcommand of the binary, such as migrate in `sendonce migrate`.
type Command struct {
	Name string
	Help string // one line, for `sendonce help`
	Run  func(ctx context.Context, env *fn.Env, args []string) error

	settings []config.Setting
}

// New makes a command that takes no arguments. C is the struct of the settings that only the command reads, with the
// tags of package config; struct{} if there are none.
func New[C any](name, help string, run func(ctx context.Context, env *fn.Env, cfg C) error) Command {
	return Command{Name: name, Help: help, settings: config.Settings[C](), Run: func(ctx context.Context, env *fn.Env, args []string) error {
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

// SettingsReaders returns the commands with their own settings, for fn.Register and fn.Prepare.
func SettingsReaders(commands []Command) []config.Reader {
	readers := make([]config.Reader, len(commands))
	for i, c := range commands {
		readers[i] = config.Reader{Name: c.Name, Settings: c.settings}
	}
	return readers
}

// ConfigTable returns every setting, shared ones and those of the functions and commands, as a Markdown table.
func ConfigTable(commands []Command, functions ...fn.Function) string {
	return config.Table(fn.Settings(SettingsReaders(commands), functions))
}

// SecretReaders returns, by the name of each secret setting, the functions and commands that read it; an empty list =
// all of them.
func SecretReaders(commands []Command, functions ...fn.Function) map[string][]string {
	readers := map[string][]string{}
	for _, s := range fn.Settings(SettingsReaders(commands), functions) {
		if s.Secret {
			readers[s.Name] = s.ReadBy
		}
	}
	return readers
}
