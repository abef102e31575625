package console

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// open starts a browser on the console of f.
func open(t *testing.T, f *fleet) *browser {
	t.Helper()
	home := "http://" + f.admin + "/"
	b := openBrowser(t, home)
	b.look(1280, 900, "light")
	b.do("open the console", chromedp.Navigate(home))
	b.until("the page has heard of the router", `!document.getElementById('status').textContent.includes('connecting')`)
	return b
}

func TestAnEmptyRouter(t *testing.T) {
	f := startFleet(t, 0)
	b := open(t, f)
	b.until("it says that there are no replicas", `document.getElementById('no-replicas').checkVisibility()`)
	b.until("it says that there were no requests", `document.getElementById('no-decisions').checkVisibility()`)
	b.until("the status says why it is not ready", `document.getElementById('status').textContent.includes('no replica')`)
	b.views("empty")
	b.clean()
}

func TestABusyRouter(t *testing.T) {
	f := startFleet(t, 3, "chooser.shadow=round-robin", "admin.links.trace=https://jaeger.example/trace/{trace_id}",
		"admin.links.dashboard=https://grafana.example/d/kvpilot?model={model}&replica={replica}")
	stop := make(chan struct{})
	load := f.talk(stop)
	b := open(t, f)
	b.step("replicas", func() {
		b.until("three replicas are listed as ready", `document.querySelectorAll('#replica-table tbody tr:not(.why)').length === 3 && [...document.querySelectorAll('#replica-table tbody tr:not(.why)')].every((r) => r.innerText.includes('ready') && r.innerText.includes('exact'))`)
		b.until("load is seen", `[...document.querySelectorAll('#tiles .tile')].some((t) => t.innerText.includes('Requests') && parseFloat(t.querySelector('b').innerText) > 0)`)
	})
	b.step("charts", func() {
		for _, id := range []string{"hit", "ttft", "tpot", "rate", "held", "shadow"} {
			b.until(id+" has a line", `document.querySelector('#figure-`+id+` path') && !document.getElementById('figure-`+id+`').innerText.includes('no data')`)
		}
		b.until("the hit rate rises above zero", `parseFloat(document.querySelector('#figure-hit .key b').textContent) > 0`)
		b.until("the shadow policy is named", `document.getElementById('figure-shadow').innerText.includes('round-robin')`)
	})
	b.step("decisions", func() {
		b.until("decisions have ended", `[...document.querySelectorAll('#decision-table tbody tr')].filter((r) => r.innerText.includes('completed')).length >= 5`)
		b.do("hold the list", chromedp.Click(chromedp.CSS("#hold")))
		b.do("click a decision", chromedp.Evaluate[chromedp.Void](`[...document.querySelectorAll('#decision-table tbody tr')].find((r) => r.innerText.includes('completed')).click()`))
		b.until("its candidates stand side by side, one of them chosen", `document.querySelectorAll('#explain tbody tr').length === 3 && document.querySelectorAll('#explain tr.pick').length === 1`)
		b.until("prediction and truth are told", `document.getElementById('explain').innerText.includes('predicted')`)
	})
	b.step("traces", func() {
		b.until("traces are there", `document.querySelectorAll('#trace-list details').length >= 5`)
		b.do("open one", chromedp.Click(chromedp.CSS("#trace-list details summary")))
		for _, name := range []string{"POST /v1/chat/completions", "kvpilot.tokenize", "kvpilot.choose", "kvpilot.proxy", "kvpilot.stream"} {
			b.until(name+" is drawn", `[...document.querySelectorAll('#trace-list details[open] .step')].some((n) => n.textContent.includes('`+name+`'))`)
		}
		b.do("ask for a step's attributes", chromedp.Evaluate[chromedp.Void](`[...document.querySelectorAll('#trace-list details[open] button.step')].find((n) => n.textContent === 'kvpilot.proxy').click()`))
		b.until("they are shown", `[...document.querySelectorAll('#trace-list details[open] dl')].some((l) => l.checkVisibility() && l.innerText.includes('kvpilot.overlap.tokens'))`)
		b.until("the stream's bar has a width", `[...document.querySelectorAll('#trace-list details[open] .lane i')].some((i) => i.getBoundingClientRect().width > 40)`)
	})
	b.step("a dry run", func() {
		b.do("ask", chromedp.SetValue(chromedp.CSS("#choose-text"), "You work for customer 1"), chromedp.Click(chromedp.CSS("#choose button")))
		b.until("the candidates are shown", `document.querySelectorAll('#chosen tbody tr').length === 3 && document.querySelectorAll('#chosen tr.pick').length === 1`)
		b.do("ask with a body", chromedp.SetValue(chromedp.CSS("#choose-text"), `{"messages":[{"role":"user","content":"hello"}]}`), chromedp.Click(chromedp.CSS("#choose button")))
		b.until("the candidates are shown again", `document.querySelectorAll('#chosen tr.pick').length === 1`)
		b.do("ask nonsense", chromedp.SetValue(chromedp.CSS("#choose-text"), `{"messages":`), chromedp.Click(chromedp.CSS("#choose button")))
		b.until("it says what is wrong", `document.getElementById('chosen').innerText.includes('not valid JSON')`)
		b.do("ask again", chromedp.SetValue(chromedp.CSS("#choose-text"), "You work for customer 2"), chromedp.Click(chromedp.CSS("#choose button")))
		b.until("the candidates are back", `document.querySelectorAll('#chosen tr.pick').length === 1`)
	})
	b.step("filters", func() { filters(b) })
	b.step("keys only", func() { keysOnly(b) })
	b.step("everything open, for the pictures", func() {
		b.do("explain", chromedp.Evaluate[chromedp.Void](`[...document.querySelectorAll('#decision-table tbody tr')].find((r) => r.innerText.includes('completed')).click()`))
		b.until("a trace is there", `document.querySelector('#trace-list details summary')`)
		b.do("open a trace", chromedp.Click(chromedp.CSS("#trace-list details summary")))
		b.do("ask", chromedp.SetValue(chromedp.CSS("#choose-text"), "You work for customer 2"), chromedp.Click(chromedp.CSS("#choose button")))
		b.until("all is shown", `document.querySelector('#chosen tr.pick') && document.querySelector('#explain tr.pick')`)
	})
	b.views("busy")
	b.clean()
	close(stop)
	load.Wait()
}

// filters narrows the list of decisions; the address says how.
func filters(b *browser) {
	choose := func(name, value string) {
		b.do("set the filter "+name, chromedp.Evaluate[chromedp.Void](`(() => { const f = document.getElementById('filter').elements[`+"`"+name+"`"+`]; f.value = `+"`"+value+"`"+`; f.dispatchEvent(new Event('change', { bubbles: true })); })()`))
	}
	const rows = `[...document.querySelectorAll('#decision-table tbody tr')]`
	choose("replica", "gpu-b")
	b.until("only one replica's are listed", rows+`.length > 1 && `+rows+`.every((r) => r.innerText.includes('gpu-b'))`)
	choose("show", "failed")
	b.until("nothing failed", `document.getElementById('no-matches').checkVisibility() && `+rows+`.length === 0`)
	if got := eval[string](b, "['show', 'model', 'replica', 'tenant'].map((n) => new URLSearchParams(location.search).get(n)).join()"); got != "failed,,gpu-b," {
		b.t.Errorf("the address says %q", got)
	}
	b.do("reload", chromedp.Reload())
	b.until("the filter is kept", `document.getElementById('filter').elements.show.value === 'failed' && document.getElementById('no-matches').checkVisibility()`)
	b.do("show all again", chromedp.Click(chromedp.CSS("#clear")))
	b.until("all are listed", rows+`.some((r) => r.innerText.includes('gpu-a'))`)
	b.do("close what is explained", chromedp.Evaluate[chromedp.Void](`document.querySelector('#explain h3 button')?.click()`))
	if got := eval[string](b, "location.search"); got != "" {
		b.t.Errorf("the address says %q without a filter", got)
	}
	b.do("open a decision", chromedp.Evaluate[chromedp.Void](rows+`.find((r) => r.innerText.includes('completed')).click()`))
	b.until("the address names it", `location.search.startsWith('?decision=')`)
	b.do("reload", chromedp.Reload())
	b.until("it is open again", `document.querySelectorAll('#explain tr.pick').length === 1`)
	b.until("its trace is linked elsewhere", `[...document.querySelectorAll('#explain a')].some((a) => /^https:\/\/jaeger\.example\/trace\/[0-9a-f]{32}$/.test(a.href))`)
	b.until("replicas have a dashboard", `[...document.querySelectorAll('#replica-table a')].some((a) => a.href === 'https://grafana.example/d/kvpilot?model=demo-70b&replica=gpu-a')`)
	b.do("close it", chromedp.Evaluate[chromedp.Void](`document.querySelector('#explain h3 button').click()`))
}

// TestAReplicaIsDrained clicks through the question, with keys alone.
func TestAReplicaIsDrained(t *testing.T) {
	f := startFleet(t, 2)
	b := open(t, f)
	row := func(text string) string {
		return `[...document.querySelectorAll('#replica-table tbody tr')].some((r) => r.innerText.includes('gpu-a') && r.innerText.includes('` + text + `'))`
	}
	b.until("the replica is ready", row("ready"))
	press := func() {
		b.do("focus its button", chromedp.Evaluate[chromedp.Void](`document.querySelector('[data-drain="gpu-a"]').focus()`))
		b.do("enter", chromedp.KeyEvent(kb.Enter))
		b.until("the question is there", `document.getElementById('drain').open`)
	}
	press()
	b.until("nothing is chosen yet", `document.activeElement.value === 'no'`)
	b.do("escape", chromedp.KeyEvent(kb.Escape))
	b.until("the question is gone, the focus is back", `!document.getElementById('drain').open && document.activeElement.dataset.drain === 'gpu-a'`)
	press()
	b.axe("a question")
	b.do("write a reason", chromedp.Evaluate[chromedp.Void](`document.getElementById('drain-reason').focus()`), chromedp.KeyEvent("a new driver"))
	b.shot("drain-wide-light")
	b.do("write more", chromedp.KeyEvent(" <b>now</b>"))
	b.do("to the other button", chromedp.KeyEvent(kb.Enter), chromedp.KeyEvent(kb.Enter))
	b.until("it drains", row("draining"))
	b.until("it says who did that and why", `document.getElementById('replica-table').innerText.includes('drained by an operator (a new driver <b>now</b>)')`)
	press()
	b.until("no reason is asked for", `document.getElementById('drain-reason').offsetParent === null`)
	b.do("undrain", chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter))
	b.until("it is ready again", row("ready"))
	b.clean()
}

// keysOnly uses the page without a mouse.
func keysOnly(b *browser) {
	b.do("start over", chromedp.Reload())
	b.until("decisions are listed", `document.querySelectorAll('#decision-table tbody tr').length > 5`)
	b.do("the first tab stop", chromedp.KeyEvent(kb.Tab))
	if got := eval[string](b, "document.activeElement.className"); got != "skip" {
		b.t.Errorf("the first tab stop is %q, want the link that skips the head", got)
	}
	seen := map[string]bool{}
	for range 60 {
		b.do("tab", chromedp.KeyEvent(kb.Tab))
		at := eval[string](b, "document.activeElement.id || document.activeElement.closest('table')?.id || document.activeElement.tagName")
		seen[at] = true
		if outline := eval[string](b, "getComputedStyle(document.activeElement).outlineStyle"); outline == "none" {
			b.t.Errorf("%s has the focus and does not show it", at)
		}
		if at == "decision-table" {
			break
		}
	}
	for _, want := range []string{"A", "hold", "find-id", "decision-table"} {
		if !seen[want] {
			b.t.Errorf("no tab leads to %s: %v", want, seen)
		}
	}
	b.do("enter on a row", chromedp.KeyEvent(kb.Enter))
	b.until("the decision is explained", `document.querySelectorAll('#explain tr.pick').length === 1`)
	b.until("the focus is on the explanation", `document.getElementById('explain').contains(document.activeElement)`)
	b.do("escape", chromedp.KeyEvent(kb.Escape))
	b.until("the explanation is closed", `document.querySelectorAll('#explain tr').length === 0`)
	b.until("the focus is back in the list", `document.activeElement.closest('#decision-table')`)
}

// Browsers send a key as the password of basic authentication, to the page and to the RPCs that it reads.
func TestAConsoleThatNeedsAKey(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("ops:observe-key-0001 roles=observe\nteam:infer-key-0001 roles=infer\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := startFleet(t, 0, "api.keys_file="+keys)
	b := openBrowser(t, "http://")
	b.look(1280, 900, "light")
	b.expectFaults() // the browser writes that it was asked for a key
	for user, want := range map[string]string{"ops:observe-key-0001": "no replica", "team:infer-key-0001": ""} {
		b.do("give the key", chromedp.Navigate("http://"+user+"@"+f.admin+"/console/"))
		if want == "" {
			b.until("the key is not enough", `document.body.innerText.includes('PERMISSION_DENIED')`)
			continue
		}
		b.do("open the console", chromedp.Navigate("http://"+f.admin+"/console/"))
		b.until("the RPCs answer", `document.getElementById('status').textContent.includes('`+want+`')`)
		b.do("ask", chromedp.Evaluate[chromedp.Void](`document.getElementById('find-id').value = 'x'; document.querySelector('#find button').click()`))
		b.until("it is answered", `document.getElementById('explain').innerText.includes('Nothing is known of x')`)
	}
}

func TestAnOutage(t *testing.T) {
	f := startFleet(t, 1)
	f.replicas[0].stop()
	b := open(t, f)
	b.until("the replica is unhealthy", `document.getElementById('replica-table').innerText.includes('unhealthy')`)
	for range 20 {
		resp, err := http.Post("http://"+f.http+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"demo-70b","messages":[{"role":"user","content":"hello"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("a request is answered %d", resp.StatusCode)
		}
	}
	b.until("the requests have failed, and why", `[...document.querySelectorAll('#tiles .tile')].some((t) => t.innerText.includes('Failed') && t.classList.contains('bad') && t.querySelector('b').innerText === '20' && t.innerText.includes('20 no replica'))`)
	b.until("the header says what limits", `document.getElementById('status').className !== 'good' && /refused in the last minute: no replica|not ready/.test(document.getElementById('status').innerText)`)
	b.do("list what failed", chromedp.Click(chromedp.CSS("#tiles a")))
	b.until("the filter is set", `location.search === '?show=refused'`)
	b.until("none of them runs", `[...document.querySelectorAll('#decision-table tbody tr')].every((r) => r.innerText.includes('unserved'))`)
	b.views("outage")
	b.clean()
}

func TestADeadReplica(t *testing.T) {
	f := startFleet(t, 3)
	stop := make(chan struct{})
	load := f.talk(stop)
	b := open(t, f)
	b.until("requests are answered", `[...document.querySelectorAll('#decision-table tbody tr')].some((r) => r.innerText.includes('completed'))`)
	f.replicas[1].stop()
	b.until("its row says so", `[...document.querySelectorAll('#replica-table tbody tr')].some((r) => r.innerText.includes('gpu-b') && r.innerText.includes('unhealthy'))`)
	b.until("its row says why", `[...document.querySelectorAll('#replica-table tbody tr')].some((r) => r.className === 'why' && r.innerText.includes('refused'))`)
	b.until("a tile warns", `[...document.querySelectorAll('#tiles .tile')].some((t) => t.innerText.includes('2 of 3') && t.classList.contains('warn'))`)
	time.Sleep(2 * time.Second) // for a picture of more than one moment
	b.views("dead-replica")
	b.clean()
	close(stop)
	load.Wait()
	b.expectFaults()
	f.router.stop()
	b.until("the page says that the router is gone", `document.getElementById('status').textContent.includes('cannot be reached')`)
	if !strings.Contains(eval[string](b, "document.getElementById('replica-table').innerText"), "gpu-a") {
		t.Error("what was last known is gone")
	}
	b.shot("gone-wide-light")
}
