package e2e

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/sendonce/sendonce/functions"
	"github.com/sendonce/sendonce/functions/internal/contract"
	"github.com/sendonce/sendonce/shared/fn"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/settings"
)

// fuzzServer serves all functions without a database. A call that needs the database gets 503, so the fuzz tests reach only
// the code before the first query of a call.
type fuzzServer struct {
	handler  http.Handler
	patterns []string // "POST /api/v1/sms/send", sorted
}

// newFuzzServer serves the functions. Its patterns are the operations of the contract for which wanted returns true.
func newFuzzServer(f *testing.F, wanted func(method, path string) bool) *fuzzServer {
	f.Helper()
	env, err := fn.NewEnv(settings.Config{
		DatabaseURL: "postgres://nobody@127.0.0.1:1/none", Username: "admin", Password: "secret", EncryptionKeys: sandbox.EncryptionKey,
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(env.Close)
	s := &fuzzServer{}
	if s.handler, err = fn.Handler(env, functions.Catalogue()...); err != nil {
		f.Fatal(err)
	}
	for pattern := range contract.Read(f).Operations {
		method, path, _ := strings.Cut(pattern, " ")
		if wanted(method, path) {
			s.patterns = append(s.patterns, pattern)
		}
	}
	slices.Sort(s.patterns)
	return s
}

// call makes one call as the built-in admin, which has all roles. No response may be a 500, and an error must have the
// JSON body of errors.
func (s *fuzzServer) call(t *testing.T, method, target string, header http.Header, body string) {
	t.Helper()
	path, query, _ := strings.Cut(target, "?")
	r := &http.Request{
		Method: method, URL: &url.URL{Path: path, RawQuery: query}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header,
		Body: http.NoBody, Host: "localhost", RemoteAddr: "192.0.2.1:1234", RequestURI: target,
	}
	if body != "" {
		request := httptest.NewRequest(method, "/", strings.NewReader(body))
		r.Body, r.ContentLength = request.Body, request.ContentLength
	}
	r.SetBasicAuth("admin", "secret")
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r.WithContext(t.Context()))
	if w.Code == http.StatusInternalServerError || w.Code < 200 {
		t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
	if w.Code >= 300 {
		var response struct {
			Code  int    `json:"code"`
			Error string `json:"error"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &response); err != nil || response.Code != w.Code || response.Error == "" {
			t.Fatalf("%s %s: %d with the body %q: %v", method, path, w.Code, w.Body, err)
		}
	}
}

func (s *fuzzServer) pick(n uint16) (method, path string) {
	method, path, _ = strings.Cut(s.patterns[int(n)%len(s.patterns)], " ")
	return method, contract.PathValues.Replace(path)
}

func jsonHeader() http.Header { return http.Header{"Content-Type": {"application/json"}} }

func FuzzBodies(f *testing.F) {
	s := newFuzzServer(f, func(method, path string) bool { return method != "GET" && strings.HasPrefix(path, "/api/") })
	bodies := []string{`{"phone_number":"13800138000","content":"hi","metadata":{"a":[1,{"b":null}]},"send_at":"2026-01-01T00:00:00Z"}`,
		`{"items":[{"task_id":"x","status":2}],"app_id":"a"}`, `{"to":"msg.a","client_msg_id":"k","data":{},"type":"t"}`, `{"name":"a","roles":["admin"]}`,
		`{"business_type":"a","business_id":18446744073709551615,"template_type":"b","receiver_user_id":"1"}`}
	for i := range s.patterns {
		f.Add(uint16(i), bodies[i%len(bodies)])
	}
	f.Fuzz(func(t *testing.T, route uint16, body string) {
		method, path := s.pick(route)
		s.call(t, method, path, jsonHeader(), body)
	})
}

func FuzzQueries(f *testing.F) {
	s := newFuzzServer(f, func(method, path string) bool { return method == "GET" && strings.HasPrefix(path, "/api/") })
	queries := []string{"limit=10&after=1", "app_id=a&wait=0&limit=1000", "between=ann,bob", "from=2026-01-01T00:00:00Z&to=x", "a=%zz&a=1&;"}
	for i := range s.patterns {
		f.Add(uint16(i), queries[i%len(queries)])
	}
	f.Fuzz(func(t *testing.T, route uint16, query string) {
		method, path := s.pick(route)
		s.call(t, method, path+"?"+query, http.Header{}, "")
	})
}

func FuzzKeys(f *testing.F) {
	s := newFuzzServer(f, func(string, string) bool { return false })
	for _, key := range []string{"order-4711", "", "a/b", "../x", "%00", "\x00", strings.Repeat("k", 256), "键", "a b", "a\r\nb"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		header := jsonHeader()
		header["Idempotency-Key"] = []string{key}
		s.call(t, "POST", "/api/v1/sms/send", header, `{"phone_number":"13800138000","content":"hi"}`)
		s.call(t, "GET", "/api/v1/sms/by-key/"+strings.ReplaceAll(key, "?", ""), http.Header{}, "")
		s.call(t, "GET", "/api/v1/messages/by-key/"+strings.ReplaceAll(key, "?", ""), http.Header{}, "")
	})
}

func FuzzEvents(f *testing.F) {
	s := newFuzzServer(f, func(_, path string) bool { return strings.HasPrefix(path, "/events/") })
	const structured = `{"specversion":"1.0","id":"1","source":"/s","type":"sendonce.task.succeeded.v1","subject":"0198c0de-0000-7000-8000-000000000001","data":{}}`
	for i := range s.patterns {
		f.Add(uint16(i), "application/cloudevents+json", structured, "", "", "", "")
		f.Add(uint16(i), "application/cloudevents-batch+json", "["+structured+","+structured+"]", "", "", "", "")
		f.Add(uint16(i), "application/json", `{"a":1}`, "1.0", "1", "sendonce.tick.v1", "2026-01-01T00:00:00Z")
	}
	f.Fuzz(func(t *testing.T, route uint16, contentType, body, version, id, kind, at string) {
		header := http.Header{"Content-Type": {contentType}}
		for name, value := range map[string]string{"Ce-Specversion": version, "Ce-Id": id, "Ce-Type": kind, "Ce-Source": "/s", "Ce-Time": at} {
			if value != "" {
				header[name] = []string{value}
			}
		}
		method, path := s.pick(route)
		s.call(t, method, path, header, body)
	})
}
