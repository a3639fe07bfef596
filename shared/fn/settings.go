package fn

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/sendonce/sendonce/shared/bus"
)

// setting is one row of the settings table.
type setting struct {
	name, def, desc string
	secret          bool
	usedBy          []string // function names; empty = all
}

// settingsOf lists the variables of a configuration struct. A field without
// the tags is a mistake of the programmer and panics at start.
func settingsOf(config reflect.Type) []setting {
	var all []setting
	for i := range config.NumField() {
		tag := config.Field(i).Tag
		if tag.Get("ignored") == "true" {
			continue
		}
		s := setting{name: tag.Get("envconfig"), def: tag.Get("default"), desc: tag.Get("desc"), secret: tag.Get("secret") == "true"}
		if s.name == "" || s.desc == "" {
			panic(fmt.Sprintf("fn: %s.%s needs the tags envconfig and desc", config, config.Field(i).Name))
		}
		if s.secret && (config.Field(i).Type.Kind() != reflect.String || s.def != "") {
			panic(fmt.Sprintf("fn: %s.%s is secret and must be a string without a default", config, config.Field(i).Name))
		}
		if readers := tag.Get("readby"); readers != "" {
			s.usedBy = strings.Split(readers, ",")
		}
		all = append(all, s)
	}
	return all
}

// settings gives the shared settings first, then those of the functions and
// words by name, each once with all that read it.
func settings(words []Word, functions []Function) []setting {
	byName := map[string]setting{}
	for _, w := range words {
		functions = append(functions[:len(functions):len(functions)], Function{Name: w.Name, settings: w.settings})
	}
	for _, f := range functions {
		for _, s := range f.settings {
			known, twice := byName[s.name]
			if twice && (known.def != s.def || known.desc != s.desc) {
				panic(fmt.Sprintf("fn: %s and %s declare %s differently", known.usedBy[0], f.Name, s.name))
			}
			s.usedBy = append(known.usedBy, f.Name)
			byName[s.name] = s
		}
	}
	all := slices.Concat(settingsOf(reflect.TypeFor[Config]()), settingsOf(reflect.TypeFor[Roles]()), settingsOf(reflect.TypeFor[bus.Config]()), settingsOf(reflect.TypeFor[TwoPhase]()),
		settingsOf(reflect.TypeFor[Alerts]()))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, byName[name])
	}
	return all
}

// ConfigTable is every setting of the binary as a Markdown table: its name,
// its default, what it means and which functions and words read it. A secret's
// row names the variable that gives its file.
func ConfigTable(words []Word, functions ...Function) string {
	var b strings.Builder
	b.WriteString("| Name | Default | Meaning | Read by |\n|---|---|---|---|\n")
	for _, s := range settings(words, functions) {
		def, usedBy := "", "all"
		if s.def != "" {
			def = "`" + s.def + "`"
		}
		if len(s.usedBy) > 0 {
			usedBy = strings.Join(s.usedBy, ", ")
		}
		desc := strings.ReplaceAll(s.desc, "|", `\|`)
		if s.secret {
			desc += "; or `" + s.name + fileSuffix + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.name, def, desc, usedBy)
	}
	return b.String()
}

// SecretReaders returns the name of every secret setting with the functions and
// words that read it; an empty list stands for all of them.
func SecretReaders(words []Word, functions ...Function) map[string][]string {
	readers := map[string][]string{}
	for _, s := range settings(words, functions) {
		if s.secret {
			readers[s.name] = s.usedBy
		}
	}
	return readers
}

// configFromEnvironment reads and checks the shared settings, and finds the
// misspelt ones of all functions whichever of them is served.
func configFromEnvironment(words []Word, functions []Function) (Config, []problem) {
	var cfg Config
	problems := slices.Concat(load(&cfg), load(&cfg.Roles), load(&cfg.Bus), load(&cfg.TwoPhase), load(&cfg.Alerts))
	return cfg, append(problems, unknownSettings(os.Environ(), words, functions)...)
}
