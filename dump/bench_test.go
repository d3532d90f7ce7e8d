package dump

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"sluice/dump/dumptest"
)

func BenchmarkRecord(b *testing.B) {
	for _, c := range []struct{ t, k int }{{1, 8}, {512, 8}} {
		b.Run(fmt.Sprintf("dump=armed/t=%d/k=%d", c.t, c.k), func(b *testing.B) {
			w := openSel(b, os.DevNull) // the work before the disk
			benchRecord(b, w, c.t, c.k)
		})
	}
	b.Run("dump=off/t=1/k=8", func(b *testing.B) { benchRecord(b, nil, 1, 8) })
}

func benchRecord(b *testing.B, w *SelWriter, t, k int) {
	expert, weight := make([]int32, t*k), make([]float32, t*k)
	if w != nil {
		b.SetBytes(int64(t * (selHeadBytes + k*selSlotBytes)))
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := w.Record(1, t, k, expert, weight); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTraceCall(b *testing.B) {
	w, err := CreateTrace(os.DevNull, TraceMeta{NExpert: 128})
	must(b, err)
	defer w.Close()
	c := TraceCall{Phase: Decode, Pos0: 1234, Layer: 20, T: 1, K: 8, Expert: []int32{1, 20, 3, 40, 5, 60, 7, 80},
		Weight: []float32{.2, .15, .15, .12, .11, .1, .09, .08}, Resident: make([]uint8, 128), ReadBytes: make([]int64, 128)}
	b.ReportAllocs()
	for b.Loop() {
		if err := w.Call(&c); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSelReader(b *testing.B) {
	data := dumptest.Read(b, "clustered-288.sel.bin")
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		r := NewSelReader(bytes.NewReader(data))
		for err := error(nil); err == nil; {
			_, err = r.Next()
		}
	}
}

func BenchmarkTraceReader(b *testing.B) {
	data := dumptest.Read(b, "qwen-dropped-part.route.csv")
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		r, err := NewTraceReader(bytes.NewReader(data))
		for row := (TraceRow{}); err == nil; {
			err = r.Next(&row)
		}
	}
}
