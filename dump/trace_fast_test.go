package dump

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"sluice/dump/dumptest"
)

// bothPaths reads data with and without the fast path.
func bothPaths(t *testing.T, data []byte) (rows int, err error) {
	t.Helper()
	a, err := NewTraceReader(bytes.NewReader(data))
	if err != nil {
		return 0, err
	}
	b, err := NewTraceReader(bytes.NewReader(data))
	must(t, err)
	b.plain = false
	for ; ; rows++ {
		var x, y TraceRow
		errA, errB := a.Next(&x), b.Next(&y)
		if fmt.Sprint(errA) != fmt.Sprint(errB) || a.Rows() != b.Rows() || a.Line() != b.Line() || a.off != b.off || a.next != b.next {
			t.Fatalf("row %d: fast %v at line %d, general %v at line %d", rows, errA, a.Line(), errB, b.Line())
		}
		if errA != nil {
			return rows, errA
		}
		if math.Float64bits(x.Weight) != math.Float64bits(y.Weight) && !(x.Weight != x.Weight && y.Weight != y.Weight) {
			t.Fatalf("row %d: weight %v fast, %v general", rows, x.Weight, y.Weight)
		}
		x.Weight, y.Weight, x.Extra, y.Extra = 0, 0, nil, nil
		if fmt.Sprint(x) != fmt.Sprint(y) {
			t.Fatalf("row %d: fast %+v, general %+v", rows, x, y)
		}
	}
}

func TestTraceFastPath(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	b.WriteString("# route_trace v1\n# n_layer=48 n_expert=128\n" + traceHeader + "\n")
	const n = 30000 // several of the reader's buffers
	for range n {
		w := "nan"
		switch rng.IntN(5) {
		case 0:
			w = strconv.FormatFloat(rng.Float64(), 'g', 6, 64)
		case 1:
			w = strconv.FormatFloat(rng.Float64()*1e-5, 'g', 6, 64)
		case 2:
			w = strconv.FormatFloat(rng.Float64(), 'f', rng.IntN(20), 64)
		case 3:
			w = strconv.FormatUint(rng.Uint64()>>rng.IntN(64), 10)
		}
		end := "\n"
		if rng.IntN(9) == 0 {
			end = "\r\n\n# a=b\n"
		}
		fmt.Fprintf(&b, "%d,%d,%d,%d,%d,%d,%s,%d,%d,%d%s", rng.IntN(9), rng.IntN(2), rng.IntN(1<<31-1), rng.IntN(48), rng.IntN(8), rng.IntN(128), w,
			rng.IntN(3), rng.Int64()>>rng.IntN(64), rng.IntN(2), end)
	}
	if rows, err := bothPaths(t, []byte(b.String())); rows != n || err != io.EOF {
		t.Fatalf("%d rows, %v", rows, err)
	}
	for _, name := range []string{"qwen-head", "qwen-dropped-part"} {
		if rows, err := bothPaths(t, dumptest.Read(t, name+".route.csv")); rows < 1000 || err != io.EOF {
			t.Errorf("%s: %d rows, %v", name, rows, err)
		}
	}
}

func FuzzTraceFastPath(f *testing.F) {
	f.Add([]byte(header9 + row9 + row9))
	f.Add([]byte("# n_layer=4 n_expert=64\n" + traceHeader + "\n0,0,1,2,3,4,nan,0,0,1\n0,1,1,2,3,4,.5,0,0,\r\n0,1,1,2,3,4,5.,2,999999999999999999,0\r\n0,0,1,2"))
	f.Add([]byte(traceHeader + seqsHeader + "\n0,0,1,2,3,4,.5,0,0,1,5,6\n0,0,1,2,3,4,.5,0,0,1,99999999999,6\n0,0,1,2,3,4,.5,0,0,1,5,6\r\n0,0,1,2,3,4,.5,0,0,1,5,6"))
	f.Add([]byte(traceHeader + "\n0,0,1,2,3,4,1e-3,0,0,1\n\n#x=1\n0,0,1,2,3,4,0.1234567890123456,0,0,1\n0,0,1,2,3,4,-1,0,0,1\n"))
	for bit := range len(row9) * 8 {
		b := []byte(header9 + row9 + row9)
		b[len(header9)+bit/8] ^= 1 << (bit % 8)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) { bothPaths(t, data) })
}
