package console_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/storage"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
	"github.com/sendonce/sendonce/shared/sandbox"
	"github.com/sendonce/sendonce/shared/task"
)

// tab is a page in headless Chromium.
type tab struct {
	t   *testing.T
	ctx context.Context
	url string

	width int // of the window
	shots int // screenshots so far

	mu       sync.Mutex
	problems []string // errors of scripts and of the content security policy
}

// chromium is one browser for all tests, because the start of a browser takes seconds of processor time.
var chromium struct {
	start sync.Once
	ctx   context.Context
	end   func()
}

// chromiumProgram returns the path of the browser, or "" if there is none. The headless shell draws no window and needs a third of
// the processor time of chromium. Its command in PATH is a script, so the path of the program is used: killing the script would
// leave the program running.
func chromiumProgram() string {
	for _, name := range []string{"/usr/lib/chromium/chromium-headless-shell", "chromium"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

func startChromium(program string) {
	profile, err := os.MkdirTemp("", "console")
	if err != nil {
		panic(err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.WindowSize(1280, 900), chromedp.UserDataDir(profile),
		// Without these flags, each new page starts several processes.
		chromedp.Flag("process-per-site", true), chromedp.Flag("renderer-process-limit", "1"), chromedp.DisableGPU,
		chromedp.Flag("disable-features", "SpareRendererForSitePerProcess,BackForwardCache,MediaRouter,OptimizationHints,Translate,site-per-process"))
	ctx, end := chromedp.NewExecAllocator(context.Background(), options...)
	chromium.ctx, _ = chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {})) // the errors are about unknown events
	chromium.end = func() {
		_ = chromedp.Cancel(chromium.ctx) // waits until the browser has ended, so that the profile can be removed
		end()
		_ = os.RemoveAll(profile)
	}
	if err := chromedp.Run(chromium.ctx); err != nil {
		panic(err)
	}
}

func endChromium() {
	if chromium.end != nil {
		chromium.end()
	}
}

// window is a window of the browser with its own cookies. Tests reuse windows, because each new window starts a process.
type window struct {
	ctx     context.Context
	close   func()
	profile cdp.BrowserContextID
}

// windows has the windows that no test uses. A window that is not open yet is nil.
var windows = func() chan *window {
	free := make(chan *window, 2)
	for range cap(free) {
		free <- nil
	}
	return free
}()

// openTab is openTabAlways for slow tests: it skips the test if slow tests do not run.
func openTab(t *testing.T, s *cluster.Client) *tab {
	t.Helper()
	sandbox.Slow(t)
	return openTabAlways(t, s)
}

// openTabAlways opens an empty page without cookies, whether or not slow tests run. It skips the test only if there is no browser.
func openTabAlways(t *testing.T, s *cluster.Client) *tab {
	t.Helper()
	program := chromiumProgram()
	if program == "" {
		t.Skip("chromium is not installed (Debian: apt-get install chromium-headless-shell)")
	}
	chromium.start.Do(func() { startChromium(program) })
	w := <-windows
	t.Cleanup(func() { windows <- w.reset(t) })
	if w == nil {
		w = newWindow(t)
	}
	ctx, stop := context.WithTimeout(w.ctx, 2*time.Minute)
	t.Cleanup(stop)
	b := &tab{t: t, ctx: ctx, url: s.URL, width: 1280}
	chromedp.ListenTarget(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			b.problems = append(b.problems, e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if e.Entry.Level == log.LevelError && !strings.Contains(e.Entry.Text, "status of 400") { // a refused form
				b.problems = append(b.problems, e.Entry.Text+" "+e.Entry.URL)
			}
		}
	})
	return b
}

// newWindow opens a window. chromedp.WithNewBrowserContext would open a tab, which needs an open window.
func newWindow(t *testing.T) *window {
	t.Helper()
	profile, err := target.CreateBrowserContext().Do(browserExecutor())
	require.NoError(t, err)
	id, err := target.CreateTarget("about:blank").WithBrowserContextID(profile).WithNewWindow(true).Do(browserExecutor())
	require.NoError(t, err)
	ctx, cancel := chromedp.NewContext(chromium.ctx, chromedp.WithTargetID(id))
	require.NoError(t, chromedp.Run(ctx, log.Enable(), emulation.SetFocusEmulationEnabled(true))) // another window may have the focus
	return &window{ctx, cancel, profile}
}

// reset clears the window for the next test. After a failed test, the window may still load a page, so reset closes it and returns
// nil.
func (w *window) reset(t *testing.T) *window {
	if w == nil {
		return nil
	}
	if !t.Failed() {
		ctx, stop := context.WithTimeout(w.ctx, time.Minute)
		defer stop()
		err := chromedp.Run(ctx, chromedp.Navigate("about:blank"), emulation.ClearDeviceMetricsOverride(), emulation.SetScriptExecutionDisabled(false))
		if err == nil && storage.ClearCookies().WithBrowserContextID(w.profile).Do(browserExecutor()) == nil {
			return w
		}
	}
	w.close()
	_ = target.DisposeBrowserContext(w.profile).Do(browserExecutor())
	return nil
}

// browserExecutor returns the context of commands to the browser itself, not to a page.
func browserExecutor() context.Context {
	return cdp.WithExecutor(chromium.ctx, chromedp.FromContext(chromium.ctx).Browser)
}

// byQuery finds elements by a CSS selector. It polls for missing elements every 30 ms; chromedp's default is 5 ms.
func byQuery(s *chromedp.Selector) {
	chromedp.ByQuery(s)
	chromedp.RetryInterval(30 * time.Millisecond)(s)
}

func (b *tab) run(actions ...chromedp.Action) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Run(b.ctx, actions...))
}

// open shows a page. Errors of scripts and of the content security policy fail the test.
func (b *tab) open(path string) {
	b.t.Helper()
	b.run(chromedp.Navigate(b.url+path), chromedp.WaitReady("main", byQuery))
	b.requireNoBrowserErrors()
	b.shot()
}

func (b *tab) requireNoBrowserErrors() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.problems)
}

// logIn logs in without the form: it sets the cookies of a new session.
func (b *tab) logIn(s *cluster.Client) {
	b.t.Helper()
	site, err := url.Parse(b.url)
	require.NoError(b.t, err)
	for _, cookie := range logIn(b.t, s).http.Jar.Cookies(site) {
		b.run(network.SetCookie(cookie.Name, cookie.Value).WithURL(b.url))
	}
}

// logInByForm logs in with the login form.
func (b *tab) logInByForm(s *cluster.Client) {
	b.t.Helper()
	b.open("/console/login")
	b.run(chromedp.SendKeys(`input[name=name]`, s.User, byQuery), chromedp.SendKeys(`input[name=password]`, s.Password, byQuery),
		chromedp.Submit(`input[name=password]`, byQuery), chromedp.WaitVisible(`.menu`, byQuery))
}

// text returns the visible text of the page.
func (b *tab) text() (text string) {
	b.t.Helper()
	b.run(chromedp.Text("body", &text, byQuery))
	return text
}

// click clicks an element and waits until another element is visible.
func (b *tab) click(selector, visible string) {
	b.t.Helper()
	b.run(chromedp.Click(selector, byQuery), chromedp.WaitVisible(visible, byQuery))
	b.shot()
}

// resizeToPhone makes the window as wide as a phone.
func (b *tab) resizeToPhone() {
	b.t.Helper()
	b.width = 390
	b.run(emulation.SetDeviceMetricsOverride(390, 844, 2, true))
	b.shot()
}

// resizeToDesktop undoes resizeToPhone.
func (b *tab) resizeToDesktop() {
	b.t.Helper()
	b.width = 1280
	b.run(emulation.ClearDeviceMetricsOverride())
}

// shot saves a screenshot of the whole page in the directory SCREENSHOTS, if this variable is set.
func (b *tab) shot() {
	b.t.Helper()
	directory := os.Getenv("SCREENSHOTS")
	if directory == "" {
		return
	}
	b.shots++
	name := fmt.Sprintf("%s-%02d.png", strings.ReplaceAll(b.t.Name(), "/", "-"), b.shots)
	var png []byte
	b.run(chromedp.FullScreenshot(&png, 100))
	require.NoError(b.t, os.WriteFile(filepath.Join(directory, name), png, 0o600))
}

// fill replaces the values of fields of a form, given as name, value, name, value.
func (b *tab) fill(form string, fields ...string) {
	b.t.Helper()
	for i := 0; i+1 < len(fields); i += 2 {
		field := form + ` [name="` + fields[i] + `"]`
		b.run(chromedp.WaitReady(field, byQuery)) // the page may still be loading
		b.run(chromedp.Evaluate(`document.querySelector(`+strconv.Quote(field)+`).value = ""`, nil), chromedp.SendKeys(field, fields[i+1], byQuery))
	}
}

// requireFits fails the test if the page is wider than the window.
func (b *tab) requireFits() {
	b.t.Helper()
	var width int
	b.run(chromedp.Evaluate(`document.documentElement.scrollWidth`, &width))
	require.LessOrEqual(b.t, width, b.width, "the page fits the window")
}

// requireFitsEverywhere opens a page, and fails the test if the page is wider than the window of a desktop or of a phone.
func (b *tab) requireFitsEverywhere(path string) {
	b.t.Helper()
	b.open(path)
	b.requireFits()
	b.resizeToPhone()
	b.requireFits()
	b.resizeToDesktop()
}

func TestOperatorFindsAndRetriesATask(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	sent := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"您的验证码是123456","source":"<img src=x onerror=alert(1)>","max_retries":0}`)
	id := sent.Data("task_id").(string)
	s.Get("/api/v1/sms/tasks/pending?app_id=phone-1")
	s.Post("/api/v1/sms/report", `{"task_id":"`+id+`","app_id":"phone-1","status":3,"error_message":"<script>alert(1)</script>"}`)

	b := openTabAlways(t, s)
	b.logInByForm(s)
	b.open("/console/tasks?state=failed")
	require.Contains(t, b.text(), "<script>alert(1)</script>", "shown as text")
	b.click(`a[href="/console/tasks/`+id+`"]`, `.timeline`)
	require.NotContains(t, b.text(), "123456")
	b.click(`form[action$="/reveal"] button`, `dd button[data-copy="13800138000"]`)
	require.Contains(t, b.text(), "您的验证码是123456")
	require.Equal(t, 1, s.Count(`select count(*) from operator_actions where action = 'task.reveal'`))
	b.open("/console/tasks/" + id)
	b.click(`form[action$="/retry"] button`, `dialog[open]`)
	b.click(`dialog[open] button.primary`, `.notice`)
	require.Contains(t, b.text(), "The task is pending again.")
	require.Equal(t, "pending", s.Get("/api/v1/sms/task/"+id).Data("state"))
	b.click(`button[name=language]`, `html[lang=zh-CN] h1`)
	b.open("/console/tasks/" + id)
	require.Contains(t, b.text(), "时间线")
	b.resizeToPhone()
	b.open("/console/tasks")
	b.requireFits()
	b.requireNoBrowserErrors()
	require.Contains(t, b.text(), "任务")
}

func TestOperatorCancelsAllTasksOfAFilter(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	for range 7 {
		s.SubmitTo("promo")
	}
	s.SubmitTo("default")
	b := openTab(t, s)
	b.logIn(s)
	b.open("/console/tasks?queue=promo&state=pending")
	b.click(`a[href^="/console/bulk/new"]`, `form[action="/console/bulk"]`)
	b.run(chromedp.SendKeys(`input[name=count]`, "8", byQuery), chromedp.SendKeys(`input[name=reason]`, "the campaign was withdrawn", byQuery))
	b.click(`form[action="/console/bulk"] button`, `.wrong`)
	require.Zero(t, s.Count(`select count(*) from bulk_changes`), "a wrong number starts no bulk change")
	b.run(chromedp.SetValue(`input[name=count]`, "7", byQuery))
	b.click(`form[action="/console/bulk"] button`, `progress`)
	require.Equal(t, 204, s.Tick("sweep").Status)
	b.run(chromedp.WaitVisible(`.state.finished`, byQuery)) // the page refreshes itself
	require.Equal(t, 7, s.Count(`select count(*) from task_done where reason = $1`, int16(task.Cancelled)))
	require.Equal(t, 1, s.Count(`select count(*) from task_live`))
	b.open("/console/bulk")
	b.requireNoBrowserErrors()
}

func TestConsoleWorksWithoutScripts(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	id := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","idempotency_key":"order-4711"}`).Data("task_id").(string)
	b := openTab(t, s)
	b.run(emulation.SetScriptExecutionDisabled(true))
	b.logInByForm(s)
	b.run(chromedp.SendKeys(`input[name=q]`, "order-4711\n", byQuery), chromedp.WaitVisible(`.timeline`, byQuery)) // the search leads to the task
	b.click(`form[action$="/cancel"] button`, `.notice`)
	require.Equal(t, "failed", s.Get("/api/v1/sms/task/"+id).Data("state"))
	b.click(`form[action$="/retry"] button`, `form[action$="/cancel"]`)
	require.Equal(t, "pending", s.Get("/api/v1/sms/task/"+id).Data("state"))
	b.requireNoBrowserErrors()
}
