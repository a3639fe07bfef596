package console_test

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/api"
)

// fetch requests a file of the docs without a session, and does not decompress the response.
func fetch(t *testing.T, url string, header ...string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := (&http.Transport{DisableCompression: true}).RoundTrip(req)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res, body
}

// The subtests share a server, because a server prepares each file when it is first requested.
func TestDocs(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	t.Run("serve the contract", func(t *testing.T) { contractIsServed(t, s) })
	t.Run("are compressed and cached", func(t *testing.T) { docsAreCompressed(t, s) })
	t.Run("have a reference of each operation", func(t *testing.T) { referenceHasEveryOperation(t, s) })
	t.Run("have a reference that fits phones", func(t *testing.T) { referenceFitsPhones(t, s) })
	t.Run("let readers try a call", func(t *testing.T) { swaggerTriesCalls(t, s) })
}

func contractIsServed(t *testing.T, s *cluster.Client) {
	res, body := fetch(t, s.URL+"/openapi.yaml")
	require.Equal(t, "application/yaml", res.Header.Get("Content-Type"))
	require.Equal(t, string(api.OpenAPI()), string(body))

	res, body = fetch(t, s.URL+"/openapi.json")
	require.Equal(t, "application/json", res.Header.Get("Content-Type"))
	var contract struct {
		OpenAPI string
		Paths   map[string]any
	}
	require.NoError(t, json.Unmarshal(body, &contract))
	require.Equal(t, "3.1.0", contract.OpenAPI)
	require.Contains(t, contract.Paths, "/api/v1/sms/send")
}

// Each file has the same content compressed and uncompressed. A browser that has the file already gets 304.
func docsAreCompressed(t *testing.T, s *cluster.Client) {
	for _, path := range []string{"/openapi.yaml", "/openapi.json", "/docs", "/docs/init.js", "/docs/style.css", "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/docs/reference"} {
		plain, text := fetch(t, s.URL+path, "Accept-Encoding", "gzip;q=0")
		require.Equal(t, 200, plain.StatusCode, path)
		require.Empty(t, plain.Header.Get("Content-Encoding"))
		small, compressed := fetch(t, s.URL+path, "Accept-Encoding", "br, gzip")
		require.Equal(t, "gzip", small.Header.Get("Content-Encoding"), path)
		reader, err := gzip.NewReader(strings.NewReader(string(compressed)))
		require.NoError(t, err)
		decompressed, err := io.ReadAll(reader)
		require.NoError(t, err)
		require.Equal(t, string(text), string(decompressed), path)
		for encoding, first := range map[string]*http.Response{"": plain, "gzip": small} {
			require.Equal(t, "no-cache", first.Header.Get("Cache-Control"))
			require.Equal(t, "Accept-Encoding", first.Header.Get("Vary"))
			require.NotContains(t, first.Header.Get("Content-Security-Policy"), "unsafe")
			require.Equal(t, "nosniff", first.Header.Get("X-Content-Type-Options"))
			again, noBody := fetch(t, s.URL+path, "Accept-Encoding", encoding, "If-None-Match", first.Header.Get("ETag"))
			require.Equal(t, http.StatusNotModified, again.StatusCode, path)
			require.Empty(t, noBody)
		}
	}
}

func referenceHasEveryOperation(t *testing.T, s *cluster.Client) {
	_, body := fetch(t, s.URL+"/docs/reference")
	page := string(body)
	ids := regexp.MustCompile(`(?m)^      operationId: (\w+)$`).FindAllStringSubmatch(string(api.OpenAPI()), -1)
	require.Greater(t, len(ids), 90)
	for _, id := range ids {
		require.True(t, strings.Contains(page, `<section id="`+id[1]+`">`), id[1])
	}
	for _, link := range regexp.MustCompile(`href="#([^"]+)"`).FindAllStringSubmatch(page, -1) {
		require.Equal(t, 1, strings.Count(page, `id="`+link[1]+`"`), link[1])
	}
	for _, text := range []string{
		"<code>/api/v1/sms/by-key/{key}</code>", "Roles: <code>submitter</code>", "Idempotency-Key", "idempotency_key_reused",
		`<a href="#schema-SendRequest">SendRequest</a>`, "您的验证码是123456，用户张三", "client.TaskByKey(ctx, order)", "urllib.request", "openapi-fetch", "curl -sS",
	} {
		require.True(t, strings.Contains(page, text), text)
	}
	require.False(t, strings.Contains(page, "<script"), "the reference needs no JavaScript")
	require.False(t, strings.Contains(page, "**"), "Markdown is rendered")
}

func swaggerTriesCalls(t *testing.T, s *cluster.Client) {
	b := openTab(t, s)
	b.open("/docs")
	b.run(chromedp.WaitVisible(`#operations-submit-send, .opblock-tag`, byQuery))
	var headers string
	b.run(
		chromedp.Evaluate(`ui.preauthorizeBasic("basic", "`+s.User+`", "`+s.Password+`")`, nil),
		chromedp.Click(`[data-tag="submit"]`, byQuery),
		chromedp.Click(`#operations-submit-send .opblock-summary`, byQuery),
		chromedp.WaitVisible(`#operations-submit-send tr[data-param-name="X-Request-Id"] input`, byQuery),
		chromedp.Evaluate(`[...document.querySelectorAll('#operations-submit-send tr[data-param-in="header"] input')].map((input) => input.value || "empty").join()`, &headers),
		chromedp.Click(`#operations-submit-send .execute`, byQuery),
		chromedp.WaitVisible(`#operations-submit-send .live-responses-table .response-col_status`, byQuery),
	)
	var status string
	b.run(chromedp.Text(`#operations-submit-send .live-responses-table tbody .response-col_status`, &status, byQuery))
	require.Contains(t, status, "200")
	require.Equal(t, "empty,empty", headers, "the fields must not be filled with the request id and the key of the example")
	require.Equal(t, 1, s.Count(`select count(*) from tasks`))
	b.requireNoBrowserErrors()
}

func referenceFitsPhones(t *testing.T, s *cluster.Client) {
	b := openTab(t, s)
	b.resizeToPhone()
	b.run(chromedp.Navigate(b.url+"/docs/reference"), chromedp.WaitReady("main", byQuery)) // not b.open: the page is too long for its screenshot
	b.requireFits()
	b.requireNoBrowserErrors()
}
