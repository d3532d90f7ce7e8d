package profile

import (
	"context"
	"encoding/xml"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sluice/internal/whole"
)

func referenceReport(t *testing.T) *Report {
	t.Helper()
	r := report(t, "dlv3_ops.csv", string(referenceCSV(t)), ReportOptions{Whole: true})
	r.Against = Compare(report(t, "old.csv", string(referenceCSV(t)), ReportOptions{}), r)
	return r
}

// The page must be whole in itself: nothing is loaded, no script runs, and text of the file stays text.
func TestHTMLIsSelfContained(t *testing.T) {
	r := report(t, "a&<b>.csv", opsFile("trace,signpost", "m:<i>,signpost", "c:\"\"><script>alert(1)</script>,signpost", opRow("<b>x</b>", 10), "trace_end,signpost"), ReportOptions{})
	for name, page := range map[string]string{"hostile": output(t, r.WriteHTML), "reference": output(t, referenceReport(t).WriteHTML)} {
		if m := regexp.MustCompile(`(?i)<(script|link|img|iframe|object|embed|base|a)\b|\b(src|href|url|on\w+)\s*[=(]|@import|https?://`).FindString(page); m != "" {
			t.Errorf("%s: the page has %q", name, m)
		}
		if strings.Contains(page, "ZgotmplZ") || strings.Contains(page, "%!") || strings.Contains(page, "NaN") {
			t.Errorf("%s: a value was not printed", name)
		}
		d := xml.NewDecoder(strings.NewReader(strings.Replace(page, "<!doctype html>", "", 1)))
		d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
		for {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%s: tags do not match: %v", name, err)
			}
		}
	}
}

func TestHTMLShowsEveryTable(t *testing.T) {
	page := output(t, referenceReport(t).WriteHTML)
	for _, want := range []string{"Profile of dlv3_ops.csv", "format v2.1, blackhole, 1350.0 MHz, device 0", "Against old.csv", "By category (whole)", "By block (trace)",
		"By op code (eager)", "By layer (trace)", "Longest ops (trace)", "Longest gaps (trace)", "Layer cost split (trace)", "8\u2009088.9", "s17.conv56", "29.6 %"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if n := strings.Count(page, "<svg"); n < 300 {
		t.Errorf("%d bars", n)
	}
}

// A real browser opens the page, sees its tables and draws it.
func TestHTMLInBrowser(t *testing.T) {
	browser := os.Getenv("SLUICE_CHROMIUM")
	if browser == "" {
		t.Skip("SLUICE_CHROMIUM, the program of a Chromium browser, is not set")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "report.html")
	if err := whole.WriteFile(file, report(t, "dlv3_ops.csv", string(referenceCSV(t)), ReportOptions{}).WriteHTML); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		profile, err := os.MkdirTemp(dir, "user")
		if err != nil {
			t.Fatal(err)
		}
		args = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--user-data-dir=" + profile}, args...)
		var stderr strings.Builder
		cmd := exec.CommandContext(ctx, browser, append(args, "file://"+file)...)
		cmd.Stderr = &stderr
		cmd.WaitDelay = time.Second
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", browser, err, stderr.String())
		}
		return string(out)
	}
	dom := run("--dump-dom")
	for _, want := range []string{"<title>Profile of dlv3_ops.csv</title>", "conv2d / conv_transpose2d", "[stage19 glue]", "</details>"} {
		if !strings.Contains(dom, want) {
			t.Errorf("the browser's document lacks %q", want)
		}
	}
	shot := filepath.Join(dir, "shot.png")
	run("--hide-scrollbars", "--window-size=900,700", "--screenshot="+shot)
	f, err := os.Open(shot)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	bar := 0
	for y := img.Bounds().Min.Y; y < img.Bounds().Max.Y; y++ {
		for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x++ {
			if r, g, b, _ := img.At(x, y).RGBA(); r>>8 == 0x2f && g>>8 == 0x6d && b>>8 == 0xb3 {
				bar++
			}
		}
	}
	if bar < 1000 {
		t.Errorf("%d pixels have the bars' colour", bar)
	}
}

func TestGrouped(t *testing.T) {
	for v, want := range map[float64]string{0: "0.0", 999.96: "1\u2009000.0", 1234567.8: "1\u2009234\u2009567.8", -1234: "\u22121\u2009234.0", 12.34: "12.3"} {
		if got := grouped(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}
