package fn

import (
	"errors"
	stdlog "log"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/settings"
	"github.com/sendonce/sendonce/shared/task"
)

// Settings returns the shared settings in the order of settings.List, and then those of functions and commands, sorted
// by name.
func Settings(commands []config.Reader, functions []Function) []config.Setting {
	var readers []config.Reader
	for _, f := range functions {
		readers = append(readers, config.Reader{Name: f.Name, Settings: f.settings})
	}
	return append(settings.List(), config.Merge(append(readers, commands...))...)
}

// configFromEnvironment reads and checks the shared settings, and finds misspelt names. The settings of all these
// commands and functions are known names, also if the commands do not run and the functions are not served.
func configFromEnvironment(commands []config.Reader, functions []Function) (settings.Config, []task.Field) {
	cfg, problems := settings.Load()
	return cfg, append(problems, config.Unknown(os.Environ(), Settings(commands, functions))...)
}

// Prepare reads the settings and returns the Env of the process. The error is a config.Error with all
// bad settings. If serve is true, Prepare also checks the settings that only serving needs, and returns
// the functions that FUNCTION_TARGET names. A setting of one of the commands does not count as misspelt.
func Prepare(commands []config.Reader, functions []Function, serve bool) (*Env, []Function, error) {
	cfg, problems := configFromEnvironment(commands, functions)
	var served []Function
	if serve {
		var bad []task.Field
		served, bad = target(cfg.FunctionTarget, functions)
		problems = append(problems, bad...)
		_, bad = load(served)
		problems = append(problems, bad...)
		problems = append(problems, cfg.ServingProblems(slices.ContainsFunc(served, readsKeys))...)
	}
	level := slog.LevelInfo
	if cfg.Debug {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	stdlog.SetFlags(0)
	stdlog.SetOutput(&standardLog{log: log})
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

// readsKeys reports whether the settings table names f as a reader of the encryption keys.
func readsKeys(f Function) bool {
	for _, s := range settings.List() {
		if s.Name == settings.EncryptionKeys {
			return slices.Contains(s.ReadBy, f.Name)
		}
	}
	return false
}
