package fn

import (
	"os"
	"slices"

	"github.com/sendonce/sendonce/shared/bus"
	"github.com/sendonce/sendonce/shared/config"
	"github.com/sendonce/sendonce/shared/task"
)

// settings lists the shared settings first, then those of functions and commands by name.
func settings(commands []Command, functions []Function) []config.Setting {
	var readers []config.Reader
	for _, f := range functions {
		readers = append(readers, config.Reader{Name: f.Name, Settings: f.settings})
	}
	for _, c := range commands {
		readers = append(readers, config.Reader{Name: c.Name, Settings: c.settings})
	}
	return slices.Concat(config.Settings[Config](), config.Settings[Roles](), config.Settings[bus.Config](), config.Settings[TwoPhase](),
		config.Settings[Alerts](), config.Merge(readers))
}

// ConfigTable is every setting of the binary as a Markdown table.
func ConfigTable(commands []Command, functions ...Function) string {
	return config.Table(settings(commands, functions))
}

// SecretReaders returns the name of every secret setting with the functions and commands
// that read it; an empty list stands for all of them.
func SecretReaders(commands []Command, functions ...Function) map[string][]string {
	readers := map[string][]string{}
	for _, s := range settings(commands, functions) {
		if s.Secret {
			readers[s.Name] = s.ReadBy
		}
	}
	return readers
}

// configFromEnvironment reads and checks the shared settings, and finds misspelt ones of
// all functions, whichever are served.
func configFromEnvironment(commands []Command, functions []Function) (Config, []task.Field) {
	var cfg Config
	problems := slices.Concat(config.Load(&cfg), config.Load(&cfg.Roles), config.Load(&cfg.Bus), config.Load(&cfg.TwoPhase), config.Load(&cfg.Alerts))
	return cfg, append(problems, config.Unknown(os.Environ(), settings(commands, functions))...)
}
