package coact

import (
	"bytes"
	"context"
	"runtime"
	"testing"

	"sluice/dump/dumptest"
)

// All that Analyse ever allocates is the same for a file and for one forty times as long.
func TestMemoryDoesNotGrowWithTheFile(t *testing.T) {
	data := dumptest.Read(t, "clustered-288.sel.bin")
	o := Options{Experts: 288, Cards: 2, Replicate: []int{16}, Threads: 2}
	allocated := func(times int) uint64 {
		in := bytes.NewReader(bytes.Repeat(data, times))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Analyse(context.Background(), in, o)
		runtime.ReadMemStats(&after)
		must(t, err)
		return after.TotalAlloc - before.TotalAlloc
	}
	short, long := allocated(1), allocated(40)
	if long > short+short/4 {
		t.Errorf("%d bytes allocated, %d for forty times the records", short, long)
	}
}

func BenchmarkAnalyse(b *testing.B) {
	data := bytes.Repeat(dumptest.Read(b, "clustered-288.sel.bin"), 100)
	o := options288
	o.Threads = 1
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		_, err := Analyse(context.Background(), bytes.NewReader(data), o)
		must(b, err)
	}
}

// The first of the three passes: read and check every record.
func BenchmarkSurvey(b *testing.B) {
	data := bytes.Repeat(dumptest.Read(b, "clustered-288.sel.bin"), 100)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		_, err := look(context.Background(), bytes.NewReader(data), &options288)
		must(b, err)
	}
}
