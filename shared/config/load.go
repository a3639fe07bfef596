package config

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/kelseyhightower/envconfig"

	"github.com/sendonce/sendonce/shared/task"
)

// Error lists all bad settings of a process, one per line. A line is a name and a message, such as "FOO is no setting".
type Error []task.Field

func (e Error) Error() string {
	lines := make([]string, len(e))
	for i, p := range e {
		lines[i] = "  " + p.Name + " " + p.Message
	}
	return "settings are wrong:\n" + strings.Join(lines, "\n")
}

// Load reads the environment into the struct that cfg points to. It returns all settings whose values cannot be read or, if
// there are none, all settings whose values Validate refuses.
func Load(cfg any) []task.Field {
	var problems []task.Field
	firstErr := envconfig.Process("", cfg) // stops at the first bad setting
	v := reflect.ValueOf(cfg).Elem()
	for i := range v.NumField() {
		field := v.Type().Field(i)
		switch {
		case field.Tag.Get("ignored") == "true":
		case field.Tag.Get("secret") == "true":
			value, problem := secretFrom(field.Tag.Get("envconfig"))
			if problem != nil {
				problems = append(problems, *problem)
			}
			v.Field(i).SetString(value)
		case firstErr != nil: // read each field alone, to find all bad ones
			alone := reflect.New(reflect.StructOf([]reflect.StructField{field})) // a struct with only this field
			if err := envconfig.Process("", alone.Interface()); err != nil {
				problems = append(problems, badValue(field, err))
				continue
			}
			v.Field(i).Set(alone.Elem().Field(0))
		}
	}
	if len(problems) > 0 {
		return problems
	}
	if cfg, ok := cfg.(interface{ Validate() []task.Field }); ok {
		for _, f := range cfg.Validate() {
			problems = append(problems, task.Field{Name: f.Name, Message: shownValueByName(v.Type(), f.Name) + f.Message})
		}
	}
	return problems
}

func badValue(field reflect.StructField, err error) task.Field {
	message := err.Error()
	if parse, ok := errors.AsType[*envconfig.ParseError](err); ok {
		message = parse.Err.Error()
	}
	if accepted := accepts(field.Type); accepted != "" {
		message = accepted
	}
	return task.Field{Name: field.Tag.Get("envconfig"), Message: shownValue(field) + message}
}

// shownValueByName is shownValue for the field of the setting with this name.
func shownValueByName(config reflect.Type, name string) string {
	for i := range config.NumField() {
		if field := config.Field(i); field.Tag.Get("envconfig") == name {
			return shownValue(field)
		}
	}
	return ""
}

// shownValue returns the beginning of a message with the value of a setting; "" if the setting is not set, or the value is or
// may contain a secret.
func shownValue(field reflect.StructField) string {
	value, set := os.LookupEnv(field.Tag.Get("envconfig"))
	if !set || field.Tag.Get("secret") == "true" || strings.Contains(value, "@") { // perhaps a URL with a password
		return ""
	}
	return fmt.Sprintf("is %q but ", value)
}

// accepts describes the values that a type accepts; "" = the error that the type returns describes them.
func accepts(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[envconfig.Decoder]()) {
		return ""
	}
	switch {
	case t.Kind() == reflect.Slice && accepts(t.Elem()) != "":
		return "must be a list separated by commas, where each " + accepts(t.Elem())
	case t == reflect.TypeFor[url.URL]():
		return "must be a URL such as https://example.com" // the error of net/url quotes the value, with its password
	case t == reflect.TypeFor[time.Duration]():
		return "must be a duration such as 500ms, 25s or 2m"
	case t.Kind() == reflect.Bool:
		return "must be true or false"
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Int64:
		return "must be an integer"
	case t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64:
		return fmt.Sprintf("must be an integer between 0 and %d", uint64(math.MaxUint64)>>(64-t.Bits()))
	case t.Kind() == reflect.Float64:
		return "must be a number"
	}
	return ""
}
