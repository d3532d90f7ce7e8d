package probe

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
)

func TestRunMeasuresEveryKind(t *testing.T) {
	r, err := Run(t.Context(), Config{Threads: []int{1, 2}, Bytes: 4 << 20, Repeat: 2, Dir: t.TempDir(), Compute: true})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, m := range r.Memory {
		got[m.Pages]++
		if m.Bytes != 4<<20 || !(m.Best > 0) || !(m.Median > 0) || m.Median > m.Best || m.HugeBytes < 0 || m.HugeBytes > 6<<20 || m.TimedRepeats != 2 {
			t.Errorf("%+v", m)
		}
	}
	if runtime.GOOS == "linux" && (got[Pages4K] != 2 || got[PagesFile] != 2) {
		t.Errorf("measured %v (notes %q), want two rows of each kind", got, r.Notes)
	}
	if len(r.Compute) != 6 || !(r.PeakFlops() > 0) {
		t.Errorf("compute: %+v", r.Compute)
	}
	if r.Bandwidth() < r.BandwidthOf(PagesFile) || r.BandwidthOf("none") != 0 {
		t.Errorf("best %g, file %g", r.Bandwidth(), r.BandwidthOf(PagesFile))
	}
	// 4k pages must really have been refused huge ones.
	for _, m := range r.Memory {
		if m.Pages == Pages4K && m.HugeBytes != 0 {
			t.Errorf("4k region has %d bytes of huge pages", m.HugeBytes)
		}
	}
}

func TestRunRefuses(t *testing.T) {
	for _, c := range []struct {
		name, want string
		cfg        Config
	}{
		{"no thread", "0 threads", Config{Threads: []int{0}}},
		{"too many threads", "1025 threads", Config{Threads: []int{1025}}},
		{"negative passes", "-1 passes", Config{Repeat: -1}},
		{"too few bytes", "want 1048576", Config{Bytes: 100}},
		{"negative bytes", "-5 bytes", Config{Bytes: -5}},
		{"nothing available", "bytes to read", Config{Available: 1 << 20}},
	} {
		if _, err := Run(t.Context(), c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", c.name, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, Config{Bytes: 1 << 20}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// Memory that is not there is cut, and said; a directory that is not there costs one kind of page only.
func TestRunNotes(t *testing.T) {
	r, err := Run(t.Context(), Config{Bytes: 64 << 20, Available: 16 << 20, Repeat: 1, Dir: "/nonexistent"})
	if err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(r.Notes, "\n")
	if !strings.Contains(notes, "read 4 MiB instead of 64") || !strings.Contains(notes, "file pages not measured") {
		t.Errorf("notes %q", notes)
	}
	if r.Memory[0].Bytes != 4<<20 || r.BandwidthOf(PagesFile) != 0 {
		t.Errorf("%+v", r.Memory)
	}
}

func TestReadWordsReadsAll(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 40 {
		w := make([]uint64, n)
		var want uint64
		for i := range w {
			w[i] = rng.Uint64()
			want += w[i]
		}
		if got := readWords(w); got != want {
			t.Errorf("%d words: %d, want %d", n, got, want)
		}
	}
}
