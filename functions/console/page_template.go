package console

import (
	"embed"
	"encoding/json"
	"html/template"
	"strings"
	"sync"

	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/task"
)

//go:embed templates
var templateFiles embed.FS

// parsedTemplates has the templates that pageTemplate has parsed, by "language/name".
var parsedTemplates sync.Map

// pageTemplate returns the template of a page. It parses a template at its first use, because parsing all templates at the start
// would take 25 ms.
func pageTemplate(language, name string) (*template.Template, error) {
	key := language + "/" + name
	if t, ok := parsedTemplates.Load(key); ok {
		return t.(*template.Template), nil
	}
	t, err := template.New("").Funcs(templateFuncs(language)).ParseFS(templateFiles, "templates/shared/*.html", "templates/"+name+".html")
	if err == nil {
		parsedTemplates.Store(key, t)
	}
	return t, err
}

// templateFuncs returns the functions of the templates in a language.
func templateFuncs(language string) template.FuncMap {
	t := func(text string, values ...any) string { return translate(language, text, values...) }
	return template.FuncMap{
		"t":            t,
		"number":       number,
		"percent":      percent,
		"duration":     func(seconds any) string { return duration(language, seconds) },
		"time":         func(at any) timeText { return timeOf(language, at) },
		"phone":        task.MaskPhone,
		"masked":       task.MaskNumbers,
		"event":        maskedEvent,
		"hidden":       func(text string) string { return hidden(language, text) },
		"version":      fn.Version,
		"join":         strings.Join,
		"json":         func(raw json.RawMessage) string { return pretty(string(raw)) },
		"short":        shortEvent,
		"translateAPI": func(message string) string { return translateAPI(language, message) },
		"result":       func(result string) string { return resultText(language, result) },
		"lastTry":      lastTry,
		"isPast":       isPast,
		"timeIn":       timeInText,

		"alertValue":  alertValue,
		"pretty":      pretty,
		"differences": func(before, after json.RawMessage) []difference { return differences(language, before, after) },
		"subjectPage": subjectPage,
	}
}
