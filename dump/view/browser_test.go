package view

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/bench/gen"
	"sluice/dump"
)

var screenshotFile = flag.String("screenshot", "", "write the screenshot of the documents to this file; with -dark.png beside it for the dark theme")

// pageOf writes a page of recordings, by name in the folder of another package's inputs or by path.
func pageOf(t *testing.T, paths ...string) (string, []*Recording) {
	t.Helper()
	var recs []*Recording
	for _, p := range paths {
		recs = append(recs, analyseFile(t, p, Options{}))
	}
	var b bytes.Buffer
	if err := Write(&b, recs); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path, recs
}

// TestBrowser reads figures back from the page through the mouse and compares them with counts made here.
func TestBrowser(t *testing.T) {
	b := openBrowser(t, 1240, 900)
	path, recs := pageOf(t, droppedTrace, clusteredDump)
	b.load(path)
	want := countTrace(t, droppedTrace)
	rec := recs[0]
	layers := len(rec.x.layers)

	// Hover: the cell's own figures.
	for _, at := range [][2]int{{0, 49}, {47, 126}, {20, 0}, {5, 127}} {
		b.cell("experts", at[0], at[1], layers, rec.nExpert)
		tip := b.text("tip")
		n := want.at(rec.x.layers[at[0]], at[1])
		lines := []string{fmt.Sprintf("layer %d, expert %d\n", rec.x.layers[at[0]], at[1])}
		if n.picks == 0 {
			lines = append(lines, "never picked")
		} else {
			times := func(n int) string {
				if n == 1 {
					return "once"
				}
				return fmt.Sprintf("%d times", n)
			}
			lines = append(lines, "picked "+times(n.picks)+":", fmt.Sprintf("in memory %.1f %%", 100*float64(n.hit)/float64(n.picks)),
				"dropped "+times(n.dropped), fmt.Sprintf("mean weight %.4f", n.weight/float64(n.known)))
		}
		for _, l := range lines {
			if !strings.Contains(tip, l) {
				t.Errorf("cell %v says %q, want %q", at, tip, l)
			}
		}
	}
	b.mouse("mouseMoved", 5, 5)
	if tip := b.text("tip"); tip != "" {
		t.Errorf("away from the maps the tip still says %q", tip)
	}

	// Click: the layer is looked into.
	x, y := b.cell("experts", 30, 10, layers, rec.nExpert)
	b.click(x, y)
	if got := b.text("partTitle"); got != "Layer 30: experts over time" {
		t.Errorf("after a click into layer 30: %q", got)
	}
	row := strings.Fields(b.eval("document.querySelector('#layers tr.chosen').innerText"))
	l := rec.Layers()[30]
	if len(row) < 4 || row[0] != "30" || row[3] != fmt.Sprintf("%.3f", l.Entropy) {
		t.Errorf("chosen row %q, want layer 30 with entropy %.3f", row, l.Entropy)
	}
	tick, expert := want.first[30].step, want.first[30].expert
	b.cell("part", expert, tick, rec.nExpert, int(rec.g.partBins))
	if tip := b.text("tip"); !strings.Contains(tip, fmt.Sprintf("layer 30, expert %d, token %d\npicked once", expert, tick)) {
		t.Errorf("expert %d at token %d: %q", expert, tick, tip)
	}

	// Keys: from a cell to its neighbour.
	b.cell("experts", 3, 7, layers, rec.nExpert)
	b.eval("document.getElementById('experts').focus()")
	for _, kind := range []string{"keyDown", "keyUp"} {
		b.call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": "ArrowRight", "code": "ArrowRight", "windowsVirtualKeyCode": 39}, nil)
	}
	if tip := b.text("tip"); !strings.HasPrefix(tip, "layer 3, expert 8\n") {
		t.Errorf("right of expert 7: %q", tip)
	}

	// Time: residency and drops of one bin over all layers, then of one layer.
	b.cell("stack", 0, 100, 1, int(rec.g.timeBins))
	in := want.tick[100]
	if tip, line := b.text("tip"), fmt.Sprintf("dropped %.1f %%", 100*float64(in.dropped)/float64(in.picks)); !strings.Contains(tip, line) || !strings.Contains(tip, "token 100, all layers\ndecode") {
		t.Errorf("token 100: %q, want %q", tip, line)
	}
	b.choose("scope", "layer 30")
	b.cell("stack", 0, 100, 1, int(rec.g.timeBins))
	if tip := b.text("tip"); !strings.Contains(tip, "token 100, layer 30") {
		t.Errorf("token 100 of one layer: %q", tip)
	}
	b.choose("timeMetric", "reuse")
	if got := b.text("timeLegend"); !strings.Contains(got, "token before") {
		t.Errorf("legend of reuse: %q", got)
	}

	// Themes: other pixels, no faults.
	light := b.eval("document.getElementById('experts').toDataURL().length + getComputedStyle(document.body).backgroundColor")
	b.eval("document.getElementById('theme').click()")
	if dark := b.eval("document.getElementById('experts').toDataURL().length + getComputedStyle(document.body).backgroundColor"); dark == light {
		t.Errorf("both themes look the same: %s", dark)
	}

	// The other recording: a dump has no residency to show.
	b.choose("recording", filepath.Base(clusteredDump))
	if got := b.eval("document.getElementById('stackPlot').hidden + ' ' + [...document.getElementById('expertMetric').options].map(o => o.text)"); got != "true picks,mean weight" {
		t.Errorf("a dump shows %q", got)
	}
	dumped := countDump(t, clusteredDump)
	b.cell("experts", 0, 3, len(recs[1].layers), recs[1].nExpert)
	if tip := b.text("tip"); !strings.Contains(tip, fmt.Sprintf("layer 0, expert 3\npicked %d times", dumped[[2]int{0, 3}])) {
		t.Errorf("a dump's expert 3: %q, want %d picks", tip, dumped[[2]int{0, 3}])
	}
	for _, f := range b.faults() {
		t.Error(f)
	}
}

// TestBrowserMillionRows: a recording of 10^6 rows opens, answers the mouse, and no name in it can become markup.
func TestBrowserMillionRows(t *testing.T) {
	b := openBrowser(t, 1100, 800)
	c := gen.DefaultTrace(0)
	c.Turns, c.Prompt, c.Decode, c.State, c.Frac = 10, 10, 251, true, 0.5
	path := filepath.Join(t.TempDir(), "<img src=x onerror=alert(1)>.csv")
	rows, err := gen.WriteTrace(path, c)
	if err != nil {
		t.Fatal(err)
	}
	if rows < 1e6 {
		t.Fatalf("%d rows", rows)
	}
	page, recs := pageOf(t, path)
	st, err := os.Stat(page)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d rows: a page of %d KiB", rows, st.Size()>>10)
	if st.Size() > 8<<20 {
		t.Errorf("a page of %d bytes", st.Size())
	}
	b.load(page)
	if got := b.eval("document.images.length + document.getElementById('title').textContent"); !strings.HasPrefix(got, "0synthetic.gguf") || !strings.Contains(got, "<img src=x") {
		t.Errorf("title %q", got)
	}
	rec := recs[0]
	b.cell("time", 17, 300, len(rec.x.layers), int(rec.g.timeBins))
	slots := rec.tables.slots[17*int(rec.g.timeBins)+300]
	line := fmt.Sprintf("layer 17, tokens %d to %d\n%d routed experts", 300*rec.g.timeTicks, 301*rec.g.timeTicks-1, slots)
	if tip := strings.ReplaceAll(b.text("tip"), "\u202f", ""); slots == 0 || !strings.Contains(tip, line) {
		t.Errorf("tip %q, want %q", tip, line)
	}
	b.choose("layer", "47")
	b.cell("part", 100, 50, rec.nExpert, int(rec.g.partBins))
	if tip := b.text("tip"); !strings.HasPrefix(tip, "layer 47, expert 100, tokens ") {
		t.Errorf("tip %q", tip)
	}
	for _, f := range b.faults() {
		t.Error(f)
	}
}

// TestBrowserScreenshot draws the picture of docs/view.md, in both themes, and looks whether there is one.
func TestBrowserScreenshot(t *testing.T) {
	b := openBrowser(t, 1240, 1106)
	path, recs := pageOf(t, droppedTrace)
	for _, theme := range []string{"light", "dark"} {
		b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": theme}}}, nil)
		b.load(path)
		b.eval("scrollTo(0, 0)")
		x, y := b.cell("experts", 30, 90, len(recs[0].x.layers), recs[0].nExpert)
		b.click(x, y)
		b.eval("scrollTo(0, 0)")
		b.cellInPlace("experts", 30, 90, len(recs[0].x.layers), recs[0].nExpert)
		img := b.screenshot()
		if cfg, err := png.DecodeConfig(bytes.NewReader(img)); err != nil || cfg.Width < 1240 {
			t.Errorf("%s: %+v %v", theme, cfg, err)
		}
		if *screenshotFile == "" {
			continue
		}
		name := *screenshotFile
		if theme == "dark" {
			name = strings.TrimSuffix(name, ".png") + "-dark.png"
		}
		if err := os.WriteFile(name, img, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range b.faults() {
		t.Error(f)
	}
}

// analyseFile analyses a file with its sidecar.
func analyseFile(t testing.TB, path string, o Options) *Recording {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var side *dump.SelMeta
	if m, err := dump.ReadSelMeta(path); err == nil {
		side = &m
	}
	rec, err := Analyse(context.Background(), filepath.Base(path), f, side, o)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return rec
}
