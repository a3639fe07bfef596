package sender

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/template"

	"github.com/sendonce/sendonce/shared/text"
)

// requestTemplate makes the HTTP request that sends a message.
type requestTemplate struct {
	method string
	url    *template.Template
	header map[string]*template.Template
	body   *template.Template  // nil = none
	escape func(string) string // escapes fields in the body
}

// fields are the escaped fields of a message, for the templates.
type fields struct{ TaskID, ClaimID, PhoneNumber, Content, RetryCount string }

func fieldsOf(m Message, escape func(string) string) fields {
	return fields{
		TaskID: escape(m.TaskID), ClaimID: strconv.FormatInt(m.ClaimID, 10), PhoneNumber: escape(m.PhoneNumber),
		Content: escape(m.Content), RetryCount: strconv.Itoa(m.RetryCount),
	}
}

const contentType = "Content-Type"

func parseRequest(cfg HTTPConfig) (requestTemplate, error) {
	r := requestTemplate{method: cfg.Method, header: map[string]*template.Template{}}
	if r.method == "" {
		r.method = http.MethodPost
	}
	var bad []error
	parse := func(name, source string) *template.Template {
		t, err := template.New(name).Parse(source)
		bad = append(bad, err)
		return t
	}
	r.url = parse("URL", cfg.URL)
	media := "application/json"
	for name, value := range cfg.Header {
		if http.CanonicalHeaderKey(name) == contentType {
			media = value
		}
		r.header[name] = parse("header "+name, value)
	}
	if cfg.Body != "" {
		r.body = parse("body", cfg.Body)
		r.header[contentType] = parse("header "+contentType, media)
	}
	escape, err := escapeFor(media)
	r.escape, bad = escape, append(bad, err)
	if err := errors.Join(bad...); err != nil {
		return r, err
	}
	// Execute the templates with a sample message, so that NewHTTP returns their errors.
	req, err := r.newRequest(context.Background(), Message{TaskID: "t", ClaimID: 1, PhoneNumber: "+8613800138000", Content: "hello"})
	if err != nil {
		return r, err
	}
	if scheme := req.URL.Scheme; scheme != "http" && scheme != "https" || req.URL.Host == "" {
		return r, errors.New("the URL must be http://… or https://…")
	}
	return r, nil
}

// escapeFor returns the function that escapes fields in a body of a media type. In JSON and in a form, an escaped field
// cannot end the string or value that contains it.
func escapeFor(media string) (func(string) string, error) {
	kind, _, err := mime.ParseMediaType(media)
	switch {
	case err != nil:
	case kind == "application/json" || strings.HasSuffix(kind, "+json"):
		return jsonEscape, nil
	case kind == "application/x-www-form-urlencoded":
		return url.QueryEscape, nil
	case kind == "text/plain":
		return func(s string) string { return s }, nil
	}
	return nil, fmt.Errorf("%s %q: a body can be JSON, a form or text/plain", contentType, media)
}

func jsonEscape(s string) string {
	quoted, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always has a JSON form
	}
	return string(quoted[1 : len(quoted)-1])
}

// pathEscape escapes s for a path and for a query.
func pathEscape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

func (r requestTemplate) newRequest(ctx context.Context, m Message) (*http.Request, error) {
	address, err := expand(r.url, m, pathEscape)
	if err != nil {
		return nil, err
	}
	body := ""
	if r.body != nil {
		if body, err = expand(r.body, m, r.escape); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, r.method, address, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, value := range r.header {
		line, err := expand(value, m, func(s string) string { return text.Printable(s, ' ') })
		if err != nil {
			return nil, err
		}
		req.Header.Set(name, line)
	}
	return req, nil
}

func expand(t *template.Template, m Message, escape func(string) string) (string, error) {
	var b strings.Builder
	err := t.Execute(&b, fieldsOf(m, escape))
	return b.String(), err
}
