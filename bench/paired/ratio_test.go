package paired

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestInterval: the order statistics that tables of the sign test name, and what they cover.
func TestInterval(t *testing.T) {
	for _, c := range []struct {
		n, low int // low: 1 is the smallest
		covers float64
	}{{1, 1, 0}, {2, 1, 0.5}, {5, 1, 0.9375}, {6, 1, 0.96875}, {8, 1, 0.9921875}, {9, 2, 0.9609375}, {20, 6, 0.9586105}, {40, 14, 0.9615226}} {
		f := Figure{}
		for i := range c.n {
			f.Old, f.New = append(f.Old, 1), append(f.New, float64(c.n-i))
		}
		r := f.Ratio()
		if r.Low != float64(c.low) || r.Top != float64(c.n+1-c.low) || math.Abs(r.Covers-c.covers) > 1e-6 || r.Median != float64(c.n+1)/2 || r.Rounds != c.n {
			t.Errorf("%d rounds: %+v, want order statistic %d covering %v", c.n, r, c.low, c.covers)
		}
	}
	if r := (Figure{}).Ratio(); !math.IsNaN(r.Median) || r.Holds() {
		t.Errorf("no rounds: %+v", r)
	}
}

// TestIntervalCovers: of many samples of a skewed distribution the interval has the true median in as many as it says.
func TestIntervalCovers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const samples, rounds = 4000, 40
	in := 0
	for range samples {
		f := Figure{}
		for range rounds {
			f.Old, f.New = append(f.Old, 1), append(f.New, math.Exp(r.NormFloat64()))
		}
		if v := f.Ratio(); v.Low <= 1 && 1 <= v.Top {
			in++
		}
	}
	if share := float64(in) / samples; share < 0.95 || share > 0.975 { // 0.9615 by construction
		t.Errorf("%.4f of the intervals have the median", share)
	}
}

func TestTable(t *testing.T) {
	line := func(name string, ratio float64) string {
		return strings.Repeat(fmt.Sprintf("%s 100 %g\n", name, 100*ratio), 8)
	}
	for _, c := range []struct {
		text, want string
		all        bool
	}{
		{line("same", 1), "pass", true},
		{line("faster", 1.3), "pass", true},
		{line("slower", 0.99), "FAIL", false}, // not so slow, but surely slower
		{line("slow", 0.9) + line("slow", 1.1), "FAIL: too wide", false},
		{line("outliers", 1) + "outliers 100 90\noutliers 100 110\n", "pass", true},
		{"few 1 1\nfew 1 1\n", "no verdict", false},
	} {
		figures, err := Read(strings.NewReader(c.text))
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		all, err := WriteTable(&b, figures)
		if err != nil || all != c.all || !strings.Contains(b.String(), c.want) {
			t.Errorf("all %v, %v, want %v and %q:\n%s", all, err, c.all, c.want, b.String())
		}
	}
	for _, bad := range []string{"a 1", "a 1 2 3", "a x 1", "a 0 1", "a 1 -1", "a NaN 1", "a 1 Inf"} {
		if _, err := Read(strings.NewReader("a 1 1\n" + bad)); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
