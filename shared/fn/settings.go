package fn

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/task"
)

// Settings lists the shared settings first, then those of functions and commands by name.
func Settings(commands []config.Reader, functions []Function) []config.Setting {
	var readers []config.Reader
	for _, f := range functions {
		readers = append(readers, config.Reader{Name: f.Name, Settings: f.settings})
	}
	return slices.Concat(config.Settings[Config](), config.Settings[Roles](), config.Settings[bus.Config](), config.Settings[TwoPhase](),
		config.Settings[Alerts](), config.Merge(append(readers, commands...)))
}

// configFromEnvironment reads and checks the shared settings, and finds misspelt ones of
// all functions, whichever are served.
func configFromEnvironment(commands []config.Reader, functions []Function) (Config, []task.Field) {
	var cfg Config
	problems := slices.Concat(config.Load(&cfg), config.Load(&cfg.Roles), config.Load(&cfg.Bus), config.Load(&cfg.TwoPhase), config.Load(&cfg.Alerts))
	return cfg, append(problems, config.Unknown(os.Environ(), Settings(commands, functions))...)
}

// Prepare reads the settings before anything starts. It returns all that is wrong with them
// as one config.Error. To serve, it also checks what only serving needs, and returns the
// functions that FUNCTION_TARGET names. commands are the other readers of settings.
func Prepare(commands []config.Reader, functions []Function, serve bool) (*Env, []Function, error) {
	cfg, problems := configFromEnvironment(commands, functions)
	var served []Function
	if serve {
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

// missingToServe names what only serving needs: commands such as migrate do
// without a password.
func (c *Config) missingToServe(served []Function) []task.Field {
	var missing []task.Field
	if c.DatabaseURL == "" {
		missing = append(missing, task.Field{Name: "DATABASE_URL", Message: "is not set; give a URL such as postgres://localhost:5432/sendonce"})
	}
	missing = append(missing, c.Roles.checkPassword(c.DatabaseURL)...)
	switch {
	case c.Password == "" && c.PasswordHash == "":
		missing = append(missing, task.Field{Name: "BASIC_AUTH_PASSWORD", Message: "is not set or empty; choose the password of the built-in admin, there is no default, or give BASIC_AUTH_PASSWORD_HASH"})
	case c.Password != "" && c.PasswordHash != "":
		missing = append(missing, task.Field{Name: "BASIC_AUTH_PASSWORD_HASH", Message: "and BASIC_AUTH_PASSWORD are both set; keep one of them"})
	}
	if c.EncryptionKeys == "" && slices.ContainsFunc(served, readsKeys) {
		missing = append(missing, task.Field{Name: encryptionKeys, Message: "is not set; give a key that encrypts stored secrets, 32 random bytes as this prints them: openssl rand -base64 32"})
	}
	return missing
}

// readsKeys reports whether the settings table names f as a reader of the keys.
func readsKeys(f Function) bool {
	for _, s := range config.Settings[Config]() {
		if s.Name == encryptionKeys {
			return slices.Contains(s.ReadBy, f.Name)
		}
	}
	return false
}
