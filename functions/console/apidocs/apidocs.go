// Package apidocs serves the documentation of the API without login. All of it comes from openapi.yaml, except the example programs
// of the reference:
//
//   - /openapi.yaml and /openapi.json: the contract;
//   - /docs: Swagger UI, with "Try it out" against this server;
//   - /docs/reference: a reference that needs no JavaScript.
//
// The module swgui has the files of Swagger UI, compressed (0.6 MB). The module's own page has inline scripts and is not used. Each
// file is prepared at its first request and stays compressed in memory.
package apidocs

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/swaggest/swgui/v5/static"

	"github.com/sendonce/sendonce/shared/api"
	"github.com/sendonce/sendonce/shared/fn"
)

//go:embed static
var staticFiles embed.FS

// Routes returns the routes of the files and pages.
func Routes() fn.Routes {
	const script, style, html = "text/javascript; charset=utf-8", "text/css; charset=utf-8", "text/html; charset=utf-8"
	return fn.Routes{
		"GET /openapi.yaml":              fileRoute("application/yaml", func() ([]byte, error) { return api.OpenAPI(), nil }),
		"GET /openapi.json":              fileRoute("application/json", contractJSON),
		"GET /docs":                      fileRoute(html, staticFile("index.html")),
		"GET /docs/init.js":              fileRoute(script, staticFile("init.js")),
		"GET /docs/style.css":            fileRoute(style, staticFile("style.css")),
		"GET /docs/swagger-ui-bundle.js": fileRoute(script, swaggerUI("swagger-ui-bundle.js.gz")),
		"GET /docs/swagger-ui.css":       fileRoute(style, swaggerUI("swagger-ui.css.gz")),
		"GET /docs/reference":            fileRoute(html, reference),
	}
}

func staticFile(name string) func() ([]byte, error) {
	return func() ([]byte, error) { return fs.ReadFile(staticFiles, "static/"+name) }
}

func swaggerUI(name string) func() ([]byte, error) {
	return func() ([]byte, error) {
		file, err := static.FS.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		text, err := gzip.NewReader(file)
		if err != nil {
			return nil, err
		}
		return io.ReadAll(text)
	}
}

// file is the response of a route, compressed.
type file struct {
	compressed []byte
	size       int    // of the text before it was compressed
	tag        string // a hash of this text
}

func compress(text []byte) file {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(text) // a write to a buffer never fails
	_ = w.Close()
	sum := sha256.Sum256(text)
	return file{b.Bytes(), len(text), hex.EncodeToString(sum[:8])}
}

// fileRoute returns the route of a file, which browsers revalidate at each use.
func fileRoute(contentType string, content func() ([]byte, error)) fn.Route {
	prepared := sync.OnceValues(func() (file, error) {
		text, err := content()
		if err != nil {
			return file{}, err
		}
		return compress(text), nil
	})
	return fn.Page(func(w http.ResponseWriter, v *fn.Visit) {
		SetSecurityHeaders(w.Header(), "'none'")
		f, err := prepared()
		if err != nil {
			v.Log("error", "docs_failed", "cause", err.Error())
			http.Error(w, "The page could not be rendered. The log has the reason.", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("Vary", "Accept-Encoding")
		f.serve(w, v.Request)
	})
}

// serve writes the file, decompressed unless the client accepts gzip.
func (f file) serve(w http.ResponseWriter, r *http.Request) {
	if acceptsGzip(r.Header.Get("Accept-Encoding")) {
		w.Header().Set("ETag", fmt.Sprintf(`"%s-gzip"`, f.tag))
		w.Header().Set("Content-Encoding", "gzip")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.compressed))
		return
	}
	w.Header().Set("ETag", fmt.Sprintf(`"%s"`, f.tag))
	if strings.Contains(r.Header.Get("If-None-Match"), f.tag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Length", fmt.Sprint(f.size))
	text, _ := gzip.NewReader(bytes.NewReader(f.compressed)) // never fails: compress wrote the file
	_, _ = io.Copy(w, serialReader{text})                    // fails only if the client has left
}

// decompressing is held while a part of a file is decompressed.
var decompressing sync.Mutex

// serialReader lets this process decompress only one part of one file at a time, so that many requests for files do not delay calls
// of the API. The lock is not held while a client receives a part.
type serialReader struct{ io.Reader }

func (r serialReader) Read(p []byte) (int, error) {
	decompressing.Lock()
	defer decompressing.Unlock()
	return r.Reader.Read(p)
}

// acceptsGzip reports whether a header Accept-Encoding names gzip with a weight other than 0.
func acceptsGzip(header string) bool {
	for part := range strings.SplitSeq(header, ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			weight = strings.ReplaceAll(weight, " ", "")
			return strings.Trim(strings.TrimPrefix(weight, "q="), "0.") != "" || weight == ""
		}
	}
	return false
}

// SetSecurityHeaders forbids what the pages of the console and of apidocs do not need: other origins, inline scripts and styles,
// frames. Swagger UI needs neither inline styles nor eval; its images are data URLs. Forms may be sent only to formAction.
func SetSecurityHeaders(h http.Header, formAction string) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action "+formAction+"; frame-ancestors 'none'; base-uri 'none'")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("X-Content-Type-Options", "nosniff")
}
