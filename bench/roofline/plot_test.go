package roofline

import (
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every kind of report can be drawn, in both formats, also a single batch and a context of none.
func TestSavePlot(t *testing.T) {
	m, w := NewMoE(testModel, 0, 128, 8, 768)
	streaming := testMachine
	streaming.Stream = 1e9
	measured := []Measured{{"tg64", 1, 0, 0.02, 0.01, 0.03}, {"pp512", 512, 0, 0.005, 0.005, 0.005}}
	dir := t.TempDir()
	for _, c := range []struct {
		name string
		in   Input
		want []string // texts of the picture
	}{
		{"dense", Input{Machine: testMachine, Model: testModel, Context: 100, Batches: []int{0, 1, 8, 1000}}, []string{"weights", "arithmetic", "B* = ", "knee = "}},
		{"past", Input{Machine: testMachine, Model: testModel, Context: 1e6, Batches: []int{1, 8, 1000}}, []string{"keys and values", "B* = "}},
		{"single", Input{Machine: testMachine, Model: testModel, Batches: []int{4}}, []string{"sum"}},
		{"experts", Input{Machine: streaming, Model: m, Context: 100, Batches: []int{1, 8, 1000}, Weights: w, MissRate: 0.5, Measured: measured},
			[]string{"by routing", "dense estimate", "streamed experts", "measured", "tg64", "pp512"}},
	} {
		c.in.Sparsity = 1
		r, err := New(c.in)
		if err != nil {
			t.Fatal(err)
		}
		for _, ext := range []string{".png", ".svg"} {
			path := filepath.Join(dir, c.name+ext)
			if err := r.SavePlot(path); err != nil {
				t.Fatal(err)
			}
			if ext == ".png" {
				f, err := os.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := png.Decode(f); err != nil {
					t.Errorf("%s: %v", path, err)
				}
				f.Close()
				continue
			}
			svg, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range c.want {
				if !strings.Contains(string(svg), s) {
					t.Errorf("%s: no %q in the picture", path, s)
				}
			}
			if c.name == "past" && strings.Contains(string(svg), "knee") {
				t.Errorf("%s: a knee past L*", path)
			}
		}
	}
}

func TestDuration(t *testing.T) {
	for v, want := range map[float64]string{10: "10 s", 1: "1 s", 0.1: "100 ms", 9.999999999e-4: "1 ms", 1e-5: "10 \u00b5s", 1e-9: "1 ns", 1e-12: "1e-12 s", 0: "0 s"} {
		if got := duration(v); got != want {
			t.Errorf("%g: %q, want %q", v, got, want)
		}
	}
}
