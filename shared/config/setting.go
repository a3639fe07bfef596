package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Setting is one row of the settings table.
type Setting struct {
	Name, Default, Description string

	Secret bool
	ReadBy []string // functions and commands; empty = all
}

// Settings returns the settings of the struct C. It panics if a field has no envconfig or desc, or if a secret is no
// string or has a default: these are mistakes in the code.
func Settings[C any]() []Setting {
	var all []Setting
	t := reflect.TypeFor[C]()
	for i := range t.NumField() {
		tag := t.Field(i).Tag
		if tag.Get("ignored") == "true" {
			continue
		}
		s := Setting{Name: tag.Get("envconfig"), Default: tag.Get("default"), Description: tag.Get("desc"), Secret: tag.Get("secret") == "true"}
		if s.Name == "" || s.Description == "" {
			panic(fmt.Sprintf("config: %s.%s needs the tags envconfig and desc", t, t.Field(i).Name))
		}
		if s.Secret && (t.Field(i).Type.Kind() != reflect.String || s.Default != "") {
			panic(fmt.Sprintf("config: %s.%s is secret and must be a string without a default", t, t.Field(i).Name))
		}
		if readers := tag.Get("readby"); readers != "" {
			s.ReadBy = strings.Split(readers, ",")
		}
		all = append(all, s)
	}
	return all
}

// Reader is a function or command, with the settings that it reads in addition to the shared ones.
type Reader struct {
	Name     string
	Settings []Setting
}

// Merge returns the settings of all readers, sorted by name. Each setting is returned once, with the names of its
// readers. Merge panics if two readers declare one setting with different defaults or descriptions.
func Merge(readers []Reader) []Setting {
	byName := map[string]Setting{}
	for _, r := range readers {
		for _, s := range r.Settings {
			known, seen := byName[s.Name]
			if seen && (known.Default != s.Default || known.Description != s.Description) {
				panic(fmt.Sprintf("config: %s and %s declare %s differently", known.ReadBy[0], r.Name, s.Name))
			}
			s.ReadBy = append(known.ReadBy, r.Name)
			byName[s.Name] = s
		}
	}
	var all []Setting
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, byName[name])
	}
	return all
}

// Table returns a Markdown table of settings: name, default, meaning and readers. The row of a
// secret also has the name of its _FILE variable.
func Table(settings []Setting) string {
	var b strings.Builder
	b.WriteString("| Name | Default | Meaning | Read by |\n|---|---|---|---|\n")
	for _, s := range settings {
		def, readBy := "", "all"
		if s.Default != "" {
			def = "`" + s.Default + "`"
		}
		if len(s.ReadBy) > 0 {
			readBy = strings.Join(s.ReadBy, ", ")
		}
		desc := strings.ReplaceAll(s.Description, "|", `\|`)
		if s.Secret {
			desc += "; or `" + s.Name + fileSuffix + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.Name, def, desc, readBy)
	}
	return b.String()
}
