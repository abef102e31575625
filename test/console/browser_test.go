package console

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience bounds every wait; only a page that is broken meets it.
const patience = 60 * time.Second

// browser is a tab that notes what a page must not do: ask others, or write errors.
type browser struct {
	t    *testing.T
	ctx  context.Context //nolint:containedctx // chromedp's tab is a context
	home string

	mu     sync.Mutex
	faults []string // guarded by mu
	quiet  bool     // guarded by mu: faults are expected now
}

// openBrowser starts a Chromium of its own, or skips the test.
func openBrowser(t *testing.T, home string) *browser {
	t.Helper()
	path := chromium()
	if path == "" {
		t.Skip("SKIPPED: no Chromium (Debian package chromium)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("force-color-profile", "srgb"))
	alloc, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(alloc)
	t.Cleanup(closeTab)
	b := &browser{t: t, ctx: ctx, home: home}
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	if err := chromedp.Listen(ctx, b.listen); err != nil {
		t.Fatal(err)
	}
	tell(b, "hear of requests", network.Enable, network.EnableParams{})
	tell(b, "hear of the browser's own words", log.Enable, cdp.Empty{})
	tell(b, "hear of the page's words", runtime.Enable, cdp.Empty{})
	return b
}

// tell sends one command of the browser's protocol.
func tell[P, R any](b *browser, what string, command cdp.Command[P, R], params P) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if _, err := chromedp.Call(ctx, command, params); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

func chromium() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

func (b *browser) listen(event any) {
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if u := e.Request.URL; !strings.HasPrefix(u, b.home) && !strings.HasPrefix(u, "data:") {
			b.fault("a request to %s", u)
		}
	case *runtime.EventExceptionThrown:
		b.fault("an exception: %s", e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			b.fault("the page wrote a %s: %s", e.Type, e.Args[0].Value)
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.fault("the browser wrote a %s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL)
		}
	}
}

func (b *browser) fault(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.quiet {
		b.faults = append(b.faults, fmt.Sprintf(format, args...))
	}
}

// expectFaults stops noting them: what follows breaks connections on purpose.
func (b *browser) expectFaults() {
	b.mu.Lock()
	b.quiet = true
	b.mu.Unlock()
}

// clean fails the test when the page did what it must not.
func (b *browser) clean() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.faults {
		b.t.Error(f)
	}
}

func (b *browser) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

// eval returns what a JavaScript expression gives.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits until a JavaScript expression is true.
func (b *browser) until(what, expression string) {
	b.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if eval[bool](b, "Boolean("+expression+")") {
			return
		}
	}
	b.shot("failed")
	b.t.Fatalf("%s: not within %s; the page shows:\n%s", what, patience, eval[string](b, "document.body.innerText"))
}

// step names what a failure that follows was about.
func (b *browser) step(name string, do func()) {
	b.t.Helper()
	b.t.Log(name)
	do()
}

// look sets the size of the window and the colours that the system asks for.
func (b *browser) look(width, height int64, scheme string) {
	b.t.Helper()
	tell(b, "set the size", emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 600})
	tell(b, "set the colours", emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}})
}

// shot takes a picture of the whole page.
func (b *browser) shot(name string) {
	b.t.Helper()
	b.keep(name)
	dir := os.Getenv("CONSOLE_PICTURES")
	if dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.t.Fatalf("screenshot: %v", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// pictures are the ones that docs/console.md shows, by their name in the folder of all.
var pictures = map[string]string{
	"busy-wide-light": "console", "outage-wide-light": "console-outage", "dead-replica-wide-light": "console-dead-replica", "many-wide-dark": "console-64-replicas",
	"busy-phone-dark": "console-phone", "empty-wide-light": "console-empty", "drain-wide-light": "console-drain",
}

// keep writes the picture for the documents, small enough for a repository.
func (b *browser) keep(name string) {
	b.t.Helper()
	dir := os.Getenv("CONSOLE_DOCS")
	if dir == "" || pictures[name] == "" {
		return
	}
	b.capture(filepath.Join(dir, pictures[name]+".webp"), nil)
	if name == "busy-wide-light" { // and the middle of it, for the README: replicas, a decision, a trace
		at := eval[[]float64](b, `[document.getElementById('replicas').closest('section').getBoundingClientRect().top, document.querySelector('details[open]').getBoundingClientRect().bottom].map((y) => y + window.scrollY)`)
		b.capture(filepath.Join(dir, "console-decision.webp"), &page.Viewport{X: 0, Y: at[0] - 12, Width: 1280, Height: at[1] - at[0] + 24, Scale: 1})
	}
}

// capture takes a picture of a part of the page, of all of it if clip is nil.
func (b *browser) capture(file string, clip *page.Viewport) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	all, quality := true, int64(55)
	picture, err := chromedp.Call(ctx, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatWebp, Quality: &quality, Clip: clip, CaptureBeyondViewport: &all})
	if err != nil {
		b.t.Fatalf("picture for the documents: %v", err)
	}
	if err := os.WriteFile(file, picture.Data, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// views checks the page in every size and colour, and takes its pictures.
func (b *browser) views(name string) {
	b.t.Helper()
	for _, v := range []struct {
		name   string
		width  int64
		height int64
	}{{"wide", 1280, 900}, {"phone", 390, 844}} {
		for _, scheme := range []string{"light", "dark"} {
			b.look(v.width, v.height, scheme)
			if over := eval[int](b, "document.documentElement.scrollWidth - window.innerWidth"); over > 0 {
				b.t.Errorf("%s, %s: the page is %d pixels wider than its window", name, v.name, over)
			}
			for _, weak := range eval[[]string](b, weakText) {
				b.t.Errorf("%s, %s, %s: hard to read: %s", name, v.name, scheme, weak)
			}
			b.axe(fmt.Sprintf("%s, %s, %s", name, v.name, scheme))
			b.do("scroll up", chromedp.Evaluate[chromedp.Void]("window.scrollTo(0, 0)"))
			b.shot(fmt.Sprintf("%s-%s-%s", name, v.name, scheme))
		}
	}
	b.look(1280, 900, "light")
}

// axe checks the page as it is with axe-core, all rules of WCAG 2.2 A and AA and its best practices.
func (b *browser) axe(when string) {
	b.t.Helper()
	file := os.Getenv("CONSOLE_AXE")
	if file == "" {
		b.t.Logf("SKIPPED: %s: CONSOLE_AXE names no axe.min.js; make test-console fetches it", when)
		return
	}
	script, err := os.ReadFile(file)
	if err != nil {
		b.t.Fatal(err)
	}
	if !eval[bool](b, "typeof axe === 'object'") {
		b.do("load axe-core", chromedp.Evaluate[chromedp.Void](string(script)+"; undefined"))
	}
	b.do("run axe-core", chromedp.Evaluate[chromedp.Void]("window.axeSays = null; axe.run().then((r) => { window.axeSays = r.violations.map((v) => `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160)).join(' | ')}`); }, (e) => { window.axeSays = [String(e)]; }); undefined"))
	b.until("axe-core has an answer", "window.axeSays !== null")
	for _, fault := range eval[[]string](b, "window.axeSays") {
		b.t.Errorf("%s: axe-core: %s", when, fault)
	}
}

// weakText lists texts whose contrast against what is behind them is below 4.5 to 1.
const weakText = `(() => {
  const rgb = (c) => (c.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
  const behind = (n) => { for (; n; n = n.parentElement) { const c = rgb(getComputedStyle(n).backgroundColor); if (c.length === 3 || c[3] > .9) return c; } return [255, 255, 255]; };
  const weak = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const n = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !n.checkVisibility() || n.closest('script,option,svg')) continue;
    const a = light(rgb(getComputedStyle(n).color)), b = light(behind(n));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) weak.add(ratio.toFixed(1) + ' ' + walk.currentNode.textContent.trim().slice(0, 40));
  }
  return [...weak];
})()`
