package console_test

import (
	"context"
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
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

// tab is a page in a real browser: headless Chromium. With SCREENSHOTS=directory, shot keeps what it shows.
type tab struct {
	t   *testing.T
	ctx context.Context
	url string

	width int // of the window

	mu       sync.Mutex
	problems []string // errors of scripts and of the content security policy
}

// chromium is the one browser of the package: to start one takes seconds of a core. Each tab has its own cookies.
var chromium struct {
	start sync.Once
	ctx   context.Context
	end   func()
}

func startChromium(program string) {
	profile, err := os.MkdirTemp("", "console")
	if err != nil {
		panic(err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.WindowSize(1280, 900), chromedp.UserDataDir(profile),
		// Otherwise each page that is opened starts several processes ahead.
		chromedp.Flag("process-per-site", true), chromedp.Flag("renderer-process-limit", "1"), chromedp.DisableGPU,
		chromedp.Flag("disable-features", "SpareRendererForSitePerProcess,BackForwardCache,MediaRouter,OptimizationHints,Translate,site-per-process"))
	ctx, end := chromedp.NewExecAllocator(context.Background(), options...)
	chromium.ctx, _ = chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {})) // about events that it does not know
	chromium.end = func() {
		_ = chromedp.Cancel(chromium.ctx) // it closes by itself, so that nothing writes to the profile any more
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

// tabs limits how many are open at once: each wants a core while it loads a page.
var tabs = make(chan struct{}, 4)

// openTab opens a tab, and skips the test where there is no browser.
func openTab(t *testing.T, s *cluster.Client) *tab {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed (Debian: apt-get install chromium)")
	}
	chromium.start.Do(func() { startChromium(program) })
	tabs <- struct{}{}
	window, profile := newWindow(t)
	ctx, cancel := chromedp.NewContext(chromium.ctx, chromedp.WithTargetID(window))
	ctx, stop := context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(func() {
		stop()
		cancel()
		_ = target.DisposeBrowserContext(profile).Do(chromiumItself())
		<-tabs
	})
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
	b.run(log.Enable(), emulation.SetFocusEmulationEnabled(true)) // the others may take the focus
	return b
}

// newWindow opens a window with cookies of its own. The option of chromedp for that opens a tab, and there is no window
// yet that it could be in.
func newWindow(t *testing.T) (target.ID, cdp.BrowserContextID) {
	t.Helper()
	profile, err := target.CreateBrowserContext().Do(chromiumItself())
	require.NoError(t, err)
	window, err := target.CreateTarget("about:blank").WithBrowserContextID(profile).WithNewWindow(true).Do(chromiumItself())
	require.NoError(t, err)
	return window, profile
}

// chromiumItself has commands go to the browser, not to a page in it.
func chromiumItself() context.Context {
	return cdp.WithExecutor(chromium.ctx, chromedp.FromContext(chromium.ctx).Browser)
}

func (b *tab) run(actions ...chromedp.Action) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Run(b.ctx, actions...))
}

// open shows a page. Errors of scripts and of the content security policy fail the test.
func (b *tab) open(path string) {
	b.t.Helper()
	b.run(chromedp.Navigate(b.url+path), chromedp.WaitReady("main"))
	b.checkProblems()
}

func (b *tab) checkProblems() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.problems)
}

func (b *tab) logIn(name, password string) {
	b.t.Helper()
	b.open("/console/login")
	b.run(chromedp.SendKeys(`input[name=name]`, name), chromedp.SendKeys(`input[name=password]`, password), chromedp.Submit(`input[name=password]`), chromedp.WaitVisible(`.menu`))
}

// text returns what the page shows.
func (b *tab) text() (text string) {
	b.t.Helper()
	b.run(chromedp.Text("body", &text, chromedp.ByQuery))
	return text
}

// click clicks an element and waits for what the page then has.
func (b *tab) click(selector, then string) {
	b.t.Helper()
	b.run(chromedp.Click(selector, chromedp.ByQuery), chromedp.WaitVisible(then, chromedp.ByQuery))
}

// phone makes the window as wide as that of a phone.
func (b *tab) phone() {
	b.t.Helper()
	b.width = 390
	b.run(emulation.SetDeviceMetricsOverride(390, 844, 2, true))
}

// shot keeps a picture of the whole page where SCREENSHOTS names a directory.
func (b *tab) shot(name string) {
	b.t.Helper()
	directory := os.Getenv("SCREENSHOTS")
	if directory == "" {
		return
	}
	var png []byte
	b.run(chromedp.FullScreenshot(&png, 100))
	require.NoError(b.t, os.WriteFile(filepath.Join(directory, name+".png"), png, 0o600))
}

// fill replaces the values of fields of a form, given as name, value, name, value; it opens the form first.
func (b *tab) fill(form string, fields ...string) {
	b.t.Helper()
	for i := 0; i+1 < len(fields); i += 2 {
		b.run(chromedp.WaitReady(form+` [name="`+fields[i]+`"]`, chromedp.ByQuery)) // the page may still be arriving
	}
	b.run(chromedp.Evaluate(`{ const d = document.querySelector(`+strconv.Quote(form)+`).closest("details"); if (d) d.open = true; }`, nil))
	for i := 0; i+1 < len(fields); i += 2 {
		field := form + ` [name="` + fields[i] + `"]`
		b.run(chromedp.Evaluate(`document.querySelector(`+strconv.Quote(field)+`).value = ""`, nil), chromedp.SendKeys(field, fields[i+1], chromedp.ByQuery))
	}
}

// fits fails when the page is wider than the window.
func (b *tab) fits() {
	b.t.Helper()
	var width int
	b.run(chromedp.Evaluate(`document.documentElement.scrollWidth`, &width))
	require.LessOrEqual(b.t, width, b.width, "the page fits the window")
}

func TestOperatorFindsAndRetriesATask(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	sent := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"您的验证码是123456","source":"<img src=x onerror=alert(1)>","max_retries":0}`)
	id := sent.Data("task_id").(string)
	s.Get("/api/v1/sms/tasks/pending?app_id=phone-1")
	s.Post("/api/v1/sms/report", `{"task_id":"`+id+`","app_id":"phone-1","status":3,"error_message":"<script>alert(1)</script>"}`)

	b := openTab(t, s)
	b.open("/console")
	b.shot("login")
	b.logIn(s.User, s.Password)
	b.shot("overview")
	b.open("/console/tasks?state=failed")
	b.shot("tasks")
	require.Contains(t, b.text(), "<script>alert(1)</script>", "shown as text")
	b.click(`a[href="/console/tasks/`+id+`"]`, `.timeline`)
	require.NotContains(t, b.text(), "123456")
	b.click(`form[action$="/reveal"] button`, `dd button[data-copy="13800138000"]`)
	require.Contains(t, b.text(), "您的验证码是123456")
	b.shot("task-revealed")
	require.Equal(t, 1, s.Count(`select count(*) from operator_actions where action = 'task.reveal'`))
	b.open("/console/tasks/" + id)
	b.click(`form[action$="/retry"] button`, `dialog[open]`)
	b.shot("task-confirm")
	b.click(`dialog[open] button.primary`, `.notice`)
	require.Contains(t, b.text(), "The task is pending again.")
	require.Equal(t, "pending", s.Get("/api/v1/sms/task/"+id).Data("state"))
	b.click(`button[name=language]`, `html[lang=zh-CN] h1`)
	b.open("/console/tasks/" + id)
	require.Contains(t, b.text(), "时间线")
	b.shot("task-chinese")
	b.phone()
	b.open("/console/tasks")
	b.fits()
	b.shot("tasks-phone")
	b.checkProblems()
	require.True(t, strings.Contains(b.text(), "任务"))
}

func TestOperatorCancelsAllThatMatch(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	for range 7 {
		s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","queue":"promo"}`)
	}
	s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi"}`)
	b := openTab(t, s)
	b.logIn(s.User, s.Password)
	b.open("/console/tasks?queue=promo&state=pending")
	b.click(`a[href^="/console/bulk/new"]`, `form[action="/console/bulk"]`)
	b.shot("bulk-new")
	b.run(chromedp.SendKeys(`input[name=count]`, "8"), chromedp.SendKeys(`input[name=reason]`, "the campaign was withdrawn"))
	b.click(`form[action="/console/bulk"] button`, `.wrong`)
	require.Zero(t, s.Count(`select count(*) from bulk_changes`), "the number is wrong")
	b.run(chromedp.SetValue(`input[name=count]`, "7"))
	b.click(`form[action="/console/bulk"] button`, `progress`)
	b.shot("bulk-running")
	require.Equal(t, 204, s.Tick("sweep").Status)
	b.run(chromedp.WaitVisible(`.state.finished`, chromedp.ByQuery)) // the page refreshes itself
	b.shot("bulk-finished")
	require.Equal(t, 7, s.Count(`select count(*) from task_done where reason = 6`))
	require.Equal(t, 1, s.Count(`select count(*) from task_live`))
	b.open("/console/bulk")
	b.shot("bulks")
	b.checkProblems()
}

func TestConsoleWorksWithoutScripts(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	id := s.Post("/api/v1/sms/send", `{"phone_number":"13800138000","content":"hi","idempotency_key":"order-4711"}`).Data("task_id").(string)
	b := openTab(t, s)
	b.run(emulation.SetScriptExecutionDisabled(true))
	b.logIn(s.User, s.Password)
	b.run(chromedp.SendKeys(`input[name=q]`, "order-4711\n"), chromedp.WaitVisible(`.timeline`, chromedp.ByQuery)) // the search leads to the task
	b.click(`form[action$="/cancel"] button`, `.notice`)
	require.Equal(t, "failed", s.Get("/api/v1/sms/task/"+id).Data("state"))
	b.click(`form[action$="/retry"] button`, `form[action$="/cancel"]`)
	require.Equal(t, "pending", s.Get("/api/v1/sms/task/"+id).Data("state"))
	b.checkProblems()
}
