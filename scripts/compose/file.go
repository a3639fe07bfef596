package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/sendonce/sendonce/shared/api"
)

// composeFile is what compose.yaml says, as far as it is carried out here.
type composeFile struct {
	Services map[string]service `yaml:"services"`
	Secrets  map[string]struct {
		File string `yaml:"file"`
	} `yaml:"secrets"`
}

type service struct {
	Image       string            `yaml:"image"`
	Profiles    []string          `yaml:"profiles"`
	Command     words             `yaml:"command"`
	EnvFile     string            `yaml:"env_file"`
	Environment map[string]string `yaml:"environment"`
	Secrets     []string          `yaml:"secrets"`
	Volumes     []string          `yaml:"volumes"`
	User        string            `yaml:"user"`
	Restart     string            `yaml:"restart"`
	Grace       time.Duration     `yaml:"stop_grace_period"`
	DependsOn   map[string]struct {
		Condition string `yaml:"condition"`
	} `yaml:"depends_on"`
	Healthcheck struct {
		Test []string `yaml:"test"`
	} `yaml:"healthcheck"`
}

// words are a command, which may be written as a list or as one line.
type words []string

// UnmarshalYAML reads either.
func (w *words) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		*w = strings.Fields(node.Value)
		return nil
	}
	return node.Decode((*[]string)(w))
}

// defaultGrace is what compose gives a service that does not say how long it
// takes to end.
const defaultGrace = 10 * time.Second

// readCompose gives the services of a profile.
func readCompose(dir, profile string) (composeFile, error) {
	var file composeFile
	content, err := os.ReadFile(filepath.Join(dir, "compose.yaml"))
	if err != nil {
		return file, err
	}
	if err := yaml.Unmarshal(content, &file); err != nil {
		return file, fmt.Errorf("compose.yaml: %w", err)
	}
	for name, s := range file.Services {
		for key, value := range s.Environment {
			s.Environment[key] = withDefaults(value)
		}
		switch {
		case s.Profiles != nil && !slices.Contains(s.Profiles, profile):
			delete(file.Services, name)
		case s.Grace == 0:
			s.Grace = defaultGrace
			file.Services[name] = s
		}
	}
	return file, nil
}

// withDefaults puts the default in the place of each variable, as "${NAME:-default}".
func withDefaults(value string) string {
	return regexp.MustCompile(`\$\{\w+:-([^}]*)\}`).ReplaceAllString(value, "$1")
}

// names lists the services of the file.
func (f composeFile) names() []string {
	var all []string
	for name := range f.Services {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// functions lists those that answer calls: what has a profile is one.
func (f composeFile) functions() []string {
	return slices.DeleteFunc(f.names(), func(name string) bool { return f.Services[name].Profiles == nil })
}

// probe is the program that tells by its exit code whether the service lives,
// nil where there is none.
func (s service) probe() []string {
	if len(s.Healthcheck.Test) == 0 {
		return nil
	}
	return s.Healthcheck.Test[1:] // the first word is CMD
}

// copyCompose copies deploy/compose without what a stack of the developer's has
// made there.
func copyCompose(from, to string) error {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return err
	}
	for _, made := range []string{".env", "secrets"} {
		if err := os.RemoveAll(filepath.Join(to, made)); err != nil {
			return err
		}
	}
	return nil
}

// writeEnv makes .env of the example and more lines.
func writeEnv(dir string, more ...string) error {
	example, err := os.ReadFile(filepath.Join(dir, ".env.example"))
	if err != nil {
		return err
	}
	lines := append([]string{string(example)}, more...)
	return os.WriteFile(filepath.Join(dir, ".env"), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

// client calls the gateway as the admin.
func client(dir, url string) (*api.Client, error) {
	password, err := os.ReadFile(filepath.Join(dir, "secrets", "basic_auth_password"))
	if err != nil {
		return nil, err
	}
	return api.NewClient(url, "admin", string(password)), nil
}
