package view

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// chromiumEnv names the browser of the tests that need one.
const chromiumEnv = "SLUICE_CHROMIUM"

// browser is a headless Chromium with one page, driven through the DevTools protocol over a pair of pipes: JSON messages
// ended by a zero byte (https://chromedevtools.github.io/devtools-protocol/).
type browser struct {
	t        *testing.T
	w        io.Writer
	messages chan message
	session  string
	id       int
	events   []message // of the page, in order
}

type message struct {
	ID        int             `json:"id"`
	Method    string          `json:"method"`
	SessionID string          `json:"sessionId"`
	Params    json.RawMessage `json:"params"`
	Result    json.RawMessage `json:"result"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error"`
}

func openBrowser(t *testing.T, width, height int) *browser {
	t.Helper()
	path := os.Getenv(chromiumEnv)
	if path == "" {
		t.Skip("no browser: " + chromiumEnv + " names none (a Chromium, such as /usr/bin/chromium)")
	}
	toRead, toWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fromRead, fromWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	profile := t.TempDir()
	args := []string{"--headless", "--remote-debugging-pipe", "--user-data-dir=" + profile, "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
		"--hide-scrollbars", fmt.Sprintf("--window-size=%d,%d", width, height)}
	if os.Getuid() == 0 {
		args = append(args, "--no-sandbox") // Chromium's sandbox refuses to run as root
	}
	cmd := exec.Command(path, args...)
	cmd.ExtraFiles = []*os.File{toRead, fromWrite} // descriptors 3 and 4, as the option wants them
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	toRead.Close()
	fromWrite.Close()
	b := &browser{t: t, w: toWrite, messages: make(chan message, 256)}
	go func() {
		defer close(b.messages)
		in := bufio.NewReaderSize(fromRead, 1<<20)
		for {
			raw, err := in.ReadBytes(0)
			if err != nil {
				return
			}
			var m message
			if json.Unmarshal(raw[:len(raw)-1], &m) == nil {
				b.messages <- m
			}
		}
	}()
	t.Cleanup(func() {
		io.WriteString(toWrite, `{"id":0,"method":"Browser.close"}`+"\x00")
		done := make(chan struct{})
		go func() { cmd.Wait(); close(done) }()
		for open := true; open; { // until the browser has closed its end, so that it is never stuck in a write
			select {
			case _, open = <-b.messages:
			case <-time.After(10 * time.Second):
				cmd.Process.Kill()
				open = false
			}
		}
		<-done
		toWrite.Close()
		fromRead.Close()
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	b.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	return b
}

// call sends a command and waits for its answer, keeping events that come before it.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	b.id++
	if params == nil {
		params = struct{}{}
	}
	m := map[string]any{"id": b.id, "method": method, "params": params}
	if b.session != "" {
		m["sessionId"] = b.session
	}
	raw, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.w.Write(append(raw, 0)); err != nil {
		b.t.Fatalf("browser: %s: %v", method, err)
	}
	deadline := time.After(30 * time.Second)
	for {
		select {
		case m, open := <-b.messages:
			switch {
			case !open:
				b.t.Fatalf("browser: ended during %s", method)
			case m.ID == 0:
				b.events = append(b.events, m)
			case m.ID == b.id && m.Error != nil:
				b.t.Fatalf("browser: %s: %s", method, m.Error.Message)
			case m.ID == b.id:
				if result != nil {
					if err := json.Unmarshal(m.Result, result); err != nil {
						b.t.Fatalf("browser: %s: %v", method, err)
					}
				}
				return
			}
		case <-deadline:
			b.t.Fatalf("browser: no answer to %s", method)
		}
	}
}

// eval runs an expression in the page and returns its value as text.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	var r struct {
		Result struct {
			Value any `json:"value"`
		} `json:"result"`
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		} `json:"exceptionDetails"`
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("browser: %s: %s %s", expression, r.ExceptionDetails.Text, r.ExceptionDetails.Exception.Description)
	}
	return fmt.Sprint(r.Result.Value)
}

// load opens a file and waits until the page has drawn itself.
func (b *browser) load(path string) {
	b.t.Helper()
	b.call("Page.navigate", map[string]any{"url": "file://" + path}, nil)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		switch b.eval("document.documentElement?.dataset.ready") {
		case "yes":
			return
		case "failed":
			b.t.Fatalf("the page cannot be drawn: %s", b.eval("document.getElementById('notes').textContent"))
		}
	}
	b.t.Fatal("the page is not ready after 30 s")
}

// mouse sends a real mouse event at a place of the viewport.
func (b *browser) mouse(kind string, x, y float64) {
	b.t.Helper()
	p := map[string]any{"type": kind, "x": x, "y": y}
	if kind != "mouseMoved" {
		p["button"], p["clickCount"] = "left", 1
	}
	b.call("Input.dispatchMouseEvent", p, nil)
}

// cell moves the mouse into a cell of a heat map that has rows x cols of them, scrolling it into view, and returns the place.
func (b *browser) cell(canvas string, row, col, rows, cols int) (x, y float64) {
	b.t.Helper()
	at := b.eval(fmt.Sprintf(`(() => { const c = document.getElementById(%q), p = c.dataset.plot.split(" ").map(Number), y = (%d + 0.5) / %d * p[3] + p[1];
		c.scrollIntoView({ block: "center", behavior: "instant" }); let r = c.getBoundingClientRect();
		scrollBy({ top: r.top + y - innerHeight / 2, behavior: "instant" }); r = c.getBoundingClientRect();
		return (r.left + p[0] + (%d + 0.5) / %d * p[2]) + " " + (r.top + y); })()`, canvas, row, rows, col, cols))
	if _, err := fmt.Sscan(at, &x, &y); err != nil {
		b.t.Fatalf("place of cell %d, %d in %s: %q", row, col, canvas, at)
	}
	b.mouse("mouseMoved", x, y)
	return x, y
}

func (b *browser) click(x, y float64) {
	b.t.Helper()
	b.mouse("mousePressed", x, y)
	b.mouse("mouseReleased", x, y)
}

// text is what an element shows, "" while it is hidden.
func (b *browser) text(id string) string {
	b.t.Helper()
	return b.eval(fmt.Sprintf("(e => e.hidden ? '' : e.innerText)(document.getElementById(%q))", id))
}

// choose picks an option of a select by what it says.
func (b *browser) choose(id, option string) {
	b.t.Helper()
	b.eval(fmt.Sprintf(`(() => { const s = document.getElementById(%q), o = [...s.options].find(o => o.text === %q);
		if (!o) throw new Error("no such option"); s.value = o.value; s.dispatchEvent(new Event("change")); })()`, id, option))
}

// screenshot is what the window shows of the page, as PNG.
func (b *browser) screenshot() []byte {
	b.t.Helper()
	var r struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png"}, &r)
	img, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	return img
}

// faults are what went wrong in the page so far, and what it asked of any network.
func (b *browser) faults() []string {
	var out []string
	for _, m := range b.events {
		switch m.Method {
		case "Runtime.exceptionThrown", "Log.entryAdded":
			out = append(out, m.Method+" "+string(m.Params))
		case "Network.requestWillBeSent":
			var p struct{ Request struct{ URL string } }
			if json.Unmarshal(m.Params, &p) != nil || !strings.HasPrefix(p.Request.URL, "file://") && !strings.HasPrefix(p.Request.URL, "about:") {
				out = append(out, "request for "+p.Request.URL)
			}
		}
	}
	return out
}

// cellInPlace moves the mouse into a cell without scrolling.
func (b *browser) cellInPlace(canvas string, row, col, rows, cols int) {
	b.t.Helper()
	var x, y float64
	at := b.eval(fmt.Sprintf(`(() => { const c = document.getElementById(%q), p = c.dataset.plot.split(" ").map(Number), r = c.getBoundingClientRect();
		return (r.left + p[0] + (%d + 0.5) / %d * p[2]) + " " + (r.top + p[1] + (%d + 0.5) / %d * p[3]); })()`, canvas, col, cols, row, rows))
	if _, err := fmt.Sscan(at, &x, &y); err != nil {
		b.t.Fatalf("place of cell %d, %d in %s: %q", row, col, canvas, at)
	}
	b.mouse("mouseMoved", x, y)
}
