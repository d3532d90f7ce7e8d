package replay

import (
	"io"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"sluice/moe"
)

// Where a weight's six digits are not called open, they decide as the weight itself did.
func TestOpenWeight(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	open, wrong := 0, 0
	for range 200000 {
		share := moe.Drop{Frac: float64(1+rng.IntN(4)) / 4}.Share(1 + rng.IntN(12))
		w := float32(share)
		switch rng.IntN(3) {
		case 0:
			w *= 1 + float32(rng.NormFloat64()*1e-6)
		case 1:
			for range rng.IntN(20) {
				w = math.Nextafter32(w, float32(rng.IntN(2)))
			}
		default:
			w = rng.Float32()
		}
		printed, err := strconv.ParseFloat(strconv.FormatFloat(float64(w), 'g', 6, 64), 64)
		must(t, err)
		if openWeight(printed, share) {
			open++
			if (printed < share) != (float64(w) < share) {
				wrong++
			}
		} else if (printed < share) != (float64(w) < share) {
			t.Fatalf("share %v: the weight %v is printed as %v, which is on the other side and not open", share, w, printed)
		}
	}
	if open == 0 || wrong == 0 {
		t.Errorf("%d open, %d of them on the other side: the case tests nothing", open, wrong)
	}
	for _, w := range []float64{0, 0.5, 1e-30} {
		if openWeight(w, 0.25) {
			t.Errorf("%v is open", w)
		}
	}
}

// A row that six digits leave open is taken as the run decided it; one that they do not leave open is not.
func TestReproduceOpenRows(t *testing.T) {
	head := strings.TrimSuffix(preamble, "\n") + "\n# cache_bytes=400\n# cache_policy=lru\n# drop_frac=0.75\n# slot_bytes=100,100\n" + header
	row := func(weight, dropped string) string {
		read := map[string]string{"0": "100", "1": "0"}[dropped]
		return "0,1,0,0,0,1,0.9,0,100,0\n0,1,0,0,1,2," + weight + ",0," + read + "," + dropped + "\n"
	}
	for _, c := range []struct {
		weight, dropped string
		open            int64
		exact           bool
	}{
		{"0.375", "0", 1, true}, // the threshold itself, which is not below it
		{"0.375", "1", 1, true},
		{"0.374999", "1", 0, true},
		{"0.374999", "0", 0, false},
		{"0.375001", "1", 0, false},
	} {
		r, err := Drop("x", strings.NewReader(head+row(c.weight, c.dropped)), DropConfig{})
		must(t, err)
		p := r.Dynamic[0].Reproduction
		if p == nil || p.Open != c.open || p.Exact() != c.exact || (r.Reproduced() == nil) != c.exact {
			t.Errorf("%+v: %+v (%s)", c, p, r.Dynamic[0].NotReproduced)
		}
	}
}

// Where the trace ends within a call, nothing is said of that call; of the others everything is.
func TestReproduceCutTrace(t *testing.T) {
	head := strings.TrimSuffix(preamble, "\n") + "\n# cache_bytes=400\n# cache_policy=lru\n# slot_bytes=100,100\n" + header
	whole := "0,1,0,0,0,1,0.9,0,100,0\n0,1,0,0,1,2,0.1,0,100,0\n"
	for _, c := range []struct {
		rows  string
		bytes int64
		exact bool
	}{
		{whole, 200, true},
		{whole + "0,1,0,1,0,1,0.9,0,77,0\n", 200, true}, // as a kill between two writes leaves it
		{whole + "0,1,0,1,0,1,0.9,0,77,0\n0,1,0,1,1,2,0.1,0,100,0\n", 377, false},
	} {
		r, err := Drop("x", strings.NewReader(head+c.rows), DropConfig{})
		must(t, err)
		if p := r.Dynamic[0].Reproduction; p == nil || p.Bytes != c.bytes || p.Exact() != c.exact {
			t.Errorf("%q: %+v", c.rows, p)
		}
	}
}

// A run on a device read what it wanted of the misses: its residency is compared instead, and its drops as ever.
func TestReproduceDevice(t *testing.T) {
	head := strings.TrimSuffix(preamble, "\n") + "\n# device=cuda\n# cache_bytes=400\n# cache_policy=lru\n# drop_frac=0.75\n# slot_bytes=100,100\n" + header
	for _, c := range []struct {
		name, rows, want string
		exact            bool
	}{
		{"nothing read", "0,1,0,0,0,1,0.9,0,0,0\n0,1,0,0,1,2,0.4,0,0,0\n0,1,0,1,0,1,0.9,0,0,0\n0,1,0,1,1,2,0.2,0,0,1\n0,1,1,0,0,1,0.9,1,0,0\n0,1,1,0,1,2,0.2,1,0,0\n",
			"reproduced: 1 of 1 drops, residency of 6 of 6 rows (bytes not compared: device=cuda held experts of its own", true},
		{"a hit that was read", "0,1,0,0,0,1,0.9,0,0,0\n0,1,0,0,1,2,0.4,0,0,0\n0,1,1,0,0,1,0.9,1,100,0\n0,1,1,0,1,2,0.2,1,100,0\n",
			"residency of 4 of 4 rows", true},
		{"a miss that is a hit", "0,1,0,0,0,1,0.9,0,0,0\n0,1,0,0,1,2,0.4,0,0,0\n0,1,1,0,0,1,0.9,0,0,0\n0,1,1,0,1,2,0.4,1,0,0\n",
			"NOT reproduced: 0 of 0 drops, residency of 3 of 4 rows", false},
		{"a drop that is none", "0,1,0,0,0,1,0.9,0,0,0\n0,1,0,0,1,2,0.4,0,0,1\n0,1,0,1,0,1,0.9,0,0,0\n0,1,0,1,1,2,0.4,0,0,0\n", "NOT reproduced: 0 of 1 drops", false},
	} {
		r, err := Drop("x", strings.NewReader(head+c.rows), DropConfig{})
		must(t, err)
		var text strings.Builder
		must(t, r.WriteText(&text))
		if p := r.Dynamic[0].Reproduction; p == nil || p.Exact() != c.exact || (r.Reproduced() == nil) != c.exact || !strings.Contains(text.String(), c.want) ||
			strings.Contains(text.String(), "error in bytes") {
			t.Errorf("%s: %+v (%s)\n%s", c.name, p, r.Dynamic[0].NotReproduced, text.String())
		}
		if strings.Contains(c.name, "drop") {
			continue // there the drops are taken as they are
		}
		live, err := Cache("x", func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(head + c.rows)), nil },
			CacheConfig{Budgets: []int64{400}, Policies: []string{"lru"}, Order: OrderLive})
		must(t, err)
		if p := live.Reproduction; p == nil || p.Exact() != c.exact || p.Rows == 0 {
			t.Errorf("%s, live: %+v (%s)", c.name, p, live.NotReproduced)
		}
	}
}
