package dump

import (
	"bytes"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func FuzzSelReader(f *testing.F) {
	f.Add([]byte{}, uint8(1))
	f.Add(golden, uint8(3))
	data, _ := mixedDump()
	f.Add(data, uint8(64))
	f.Add(data[:len(data)-5], uint8(7))
	f.Add(append(slices.Clone(golden), 0, 0, 0), uint8(0))
	for bit := range len(golden) * 8 {
		b := slices.Clone(golden)
		b[bit/8] ^= 1 << (bit % 8)
		f.Add(b, uint8(bit))
	}
	disk := &fakeDisk{room: math.MaxInt}
	w := newSelWriter(disk) // one for all inputs: its buffer is large
	f.Fuzz(func(t *testing.T, data []byte, step uint8) {
		recs, sr, err := readSel(bytes.NewReader(data))
		off := sr.Offset()
		if sr.Records() != uint64(len(recs)) || !bytes.Equal(encodeSel(recs), data[:off]) {
			t.Fatal("the records read are not the bytes before the offset")
		}
		if n, count := wholeSel(data[:off]); int64(n) != off || count != uint64(len(recs)) {
			t.Fatalf("wholeSel says %d records in %d bytes", count, n)
		}
		torn := (*TornError)(nil)
		switch rest := data[off:]; {
		case len(rest) == 0:
			if err != io.EOF {
				t.Fatal(err)
			}
		case len(rest) >= 2 && rest[1] == 0:
			if err == io.EOF || errors.As(err, &torn) {
				t.Fatal(err)
			}
		default:
			if !errors.As(err, &torn) || torn.Offset != off || torn.Records != uint64(len(recs)) {
				t.Fatal(err)
			}
		}
		// The same in another block size.
		again, _, err2 := readSel(&stepReader{data, int(step)%97 + 1})
		if !bytes.Equal(encodeSel(again), data[:off]) || err.Error() != err2.Error() {
			t.Fatal(len(recs), len(again), err, err2)
		}
		// And through the writer.
		disk.data = disk.data[:0]
		for _, r := range recs {
			weight := make([]float32, len(r.Bits))
			for i, b := range r.Bits {
				weight[i] = math.Float32frombits(b)
			}
			must(t, w.Record(r.Layer, 1, len(r.Expert), r.Expert, weight))
		}
		must(t, w.Flush())
		if !bytes.Equal(disk.data, data[:off]) {
			t.Fatalf("written again: %x, want %x", disk.data, data[:off])
		}
	})
}

type stepReader struct {
	data []byte
	step int
}

func (r *stepReader) Read(p []byte) (int, error) {
	if len(r.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.data[:min(r.step, len(r.data))])
	r.data = r.data[n:]
	return n, nil
}

func FuzzTraceReader(f *testing.F) {
	f.Add([]byte(header9 + row9))
	f.Add([]byte("# route_trace v1\n# model=a%20b n_expert=64 x=y\n# layer=1 expert_bytes=2\n" + traceHeader + "\n0,0,1,2,3,4,nan,0,0,1\n0,0,1,2"))
	f.Add([]byte(traceHeader + seqsHeader + "\n0,0,1,2,3,4,nan,0,0,1,5,6\n0,0,1,2,3,4,.5,0,0,,5,6\r\n0,0,1,2,3,4,.5,0,0,1,5,61"))
	f.Add([]byte("a," + header9 + "1," + strings.ReplaceAll(row9, "\n", "\r\n") + "#\n"))
	for bit := range len(row9) * 8 {
		b := []byte(header9 + row9)
		b[len(header9)+bit/8] ^= 1 << (bit % 8)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tr, rows, err := readTrace(bytes.NewReader(data))
		if err == nil {
			t.Fatal("no error at the end")
		}
		if tr == nil {
			return
		}
		m := tr.Meta()
		for _, r := range rows {
			if r.Turn < 0 || r.Phase>>1 != 0 || r.Step < 0 || uint(r.Layer) >= 65536 || uint(r.Slot) >= 65536 || uint(r.Expert) >= 65536 ||
				uint(r.Residency) > 2 || r.ExpertBytes < 0 || r.Weight < 0 || r.Seq < 0 || r.Pass < 0 || !tr.Seqs() && (r.Seq != 0 || r.Pass != 0) ||
				r.WeightUnknown != (math.IsNaN(r.Weight) || math.IsInf(r.Weight, 0)) || len(r.Extra) != len(tr.ExtraColumns()) {
				t.Fatalf("%+v", r)
			}
		}
		torn := (*TornError)(nil)
		if errors.As(err, &torn) && (torn.Records != uint64(len(rows)) || torn.Offset > int64(len(data))) {
			t.Fatal(err)
		}
		again, rows2, err2 := readTrace(iotest.OneByteReader(bytes.NewReader(data)))
		if err.Error() != err2.Error() || len(rows) != len(rows2) || !cmp.Equal(m, again.Meta()) {
			t.Fatal(err, err2)
		}
		// What was read of the preamble, written and read again, is the same, unless a foreign key cannot be written.
		head, err := appendPreamble(nil, &m)
		if err != nil {
			return
		}
		back, err := NewTraceReader(bytes.NewReader(head))
		must(t, err)
		if d := cmp.Diff(m, back.Meta()); d != "" {
			t.Fatal(d)
		}
	})
}
