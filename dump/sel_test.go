package dump

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"sluice/dump/dumptest"
)

var testMeta = SelMeta{Model: "tiny <moe>.gguf", Arch: "qwen3moe", NLayer: 4, NExpert: 288, NUsed: 3, Config: map[string]string{"arm": "table"}}

func openSel(t testing.TB, path string) *SelWriter {
	t.Helper()
	w, err := OpenSel(path, testMeta)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q lacks %q", err, p)
		}
	}
}

// golden is the record of the format's own description: layer 3, experts 287, 0, 42 with weights 0.5, 0.25, 1.
var golden = []byte{
	3, 3,
	0x1f, 0x01, 0, 0, 0, 0x3f,
	0, 0, 0, 0, 0x80, 0x3e,
	42, 0, 0, 0, 0x80, 0x3f,
}

func recordGolden(t testing.TB, w *SelWriter) {
	t.Helper()
	must(t, w.Record(3, 1, 3, []int32{287, 0, 42}, []float32{0.5, 0.25, 1}))
}

func TestSelGoldenBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sel.bin")
	w := openSel(t, path)
	recordGolden(t, w)
	must(t, w.Record(255, 2, 1, []int32{0, 65535}, []float32{0, float32(math.Inf(1))})) // the format's corners
	must(t, w.Record(0, 0, 3, nil, nil))                                                // an empty call records nothing
	if n := w.Records(); n != 3 {
		t.Errorf("Records() = %d, want 3", n)
	}
	must(t, w.Close())
	must(t, w.Close())
	want := append(slices.Clone(golden), 255, 1, 0, 0, 0, 0, 0, 0, 255, 1, 0xff, 0xff, 0, 0, 0x80, 0x7f)
	if got := readFile(t, path); !bytes.Equal(got, want) {
		t.Errorf("file\n%x, want\n%x", got, want)
	}
	wantErr(t, w.Record(3, 1, 1, []int32{1}, []float32{1}), path, "closed")
	wantErr(t, w.Flush(), path, "closed")
}

func TestSelMetaSidecar(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sel.bin")
	if _, err := ReadSelMeta(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing sidecar: %v", err)
	}
	openSel(t, path) // written at open, not at close
	got, err := ReadSelMeta(path)
	must(t, err)
	if d := cmp.Diff(testMeta, got); d != "" {
		t.Error(d)
	}
	var raw map[string]any
	must(t, json.Unmarshal(readFile(t, path+".meta.json"), &raw))
	for key, want := range map[string]any{"format": "memra-moe-sel-v1", "model": "tiny <moe>.gguf", "n_layer": 4.0, "n_expert": 288.0, "n_expert_used": 3.0} {
		if raw[key] != want {
			t.Errorf("%s = %v, want %v", key, raw[key], want)
		}
	}
	names, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if len(names) != 2 {
		t.Errorf("left behind: %v", names)
	}
	for content, want := range map[string]string{"{": "unexpected end", `{"format":"x"}`: `format "x"`, strings.Repeat(" ", maxMetaBytes+1): "longer"} {
		must(t, os.WriteFile(path+".meta.json", []byte(content), 0o666))
		_, err := ReadSelMeta(path)
		wantErr(t, err, path+".meta.json", want)
	}
}

func TestSelGeometryIsCheckedBeforeWriting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sel.bin")
	w := openSel(t, path)
	many := make([]int32, 256)
	tests := []struct {
		layer, t, k int
		expert      []int32
		weight      []float32
		want        string
	}{
		{256, 1, 1, []int32{1}, []float32{1}, "layer 256 outside the format's 0..255"},
		{-1, 1, 1, []int32{1}, []float32{1}, "layer -1 outside"},
		{0, 1, 0, nil, nil, "n_sel 0 outside the format's 1..255"},
		{0, 1, 256, many, make([]float32, 256), "n_sel 256 outside"},
		{0, 1, -1, []int32{1}, []float32{1}, "n_sel -1 outside"},
		{0, 2, 2, []int32{1, 2, 3}, []float32{1, 1, 1}, "ragged selection: 3 experts for 2 tokens of 2"},
		{0, 0, 2, []int32{1, 2}, []float32{1, 1}, "ragged selection: 2 experts for 0 tokens"},
		{0, -1, 2, nil, nil, "ragged selection: 0 experts for -1 tokens"},
		{0, math.MaxInt, 2, []int32{1, 2}, []float32{1, 1}, "ragged"},
		{0, math.MaxInt/2 + 2, 2, []int32{1, 2}, []float32{1, 1}, "ragged"},
		{0, 1, 2, []int32{1, 2}, []float32{1}, "ragged selection: 1 weights for 2 experts"},
		{0, 1, 2, []int32{1, 2}, []float32{1, 1, 1}, "ragged selection: 3 weights"},
		{7, 2, 2, []int32{1, 2, 3, 65536}, make([]float32, 4), "layer 7: token 1 of 2, slot 1: expert 65536 outside the format's 0..65535"},
		{7, 2, 2, []int32{1, -1, 3, 4}, make([]float32, 4), "token 0 of 2, slot 1: expert -1"},
	}
	for _, c := range tests {
		wantErr(t, w.Record(c.layer, c.t, c.k, c.expert, c.weight), path, c.want)
	}
	recordGolden(t, w) // none of these is sticky
	must(t, w.Close())
	if got := readFile(t, path); !bytes.Equal(got, golden) || w.Records() != 1 {
		t.Errorf("%d records, file %x", w.Records(), got)
	}
}

func TestSelNilWriter(t *testing.T) {
	var w *SelWriter
	must(t, w.Record(-1, -1, -1, nil, nil))
	must(t, w.Flush())
	must(t, w.Close())
	if w.Records() != 0 || w.Notes() != nil {
		t.Error("nil writer recorded something")
	}
}

func TestRecordDoesNotAllocate(t *testing.T) {
	w := openSel(t, filepath.Join(t.TempDir(), "a.sel.bin"))
	expert, weight := make([]int32, 512*8), make([]float32, 512*8)
	// 25 KB a call: several buffers full
	if n := testing.AllocsPerRun(200, func() { must(t, w.Record(1, 512, 8, expert, weight)) }); n != 0 {
		t.Errorf("%v allocations per call", n)
	}
	tw, err := CreateTrace(filepath.Join(t.TempDir(), "a.csv"), TraceMeta{NExpert: 8})
	must(t, err)
	defer tw.Close()
	c := TraceCall{T: 512, K: 8, Expert: expert, Weight: weight, Resident: make([]uint8, 8), ReadBytes: make([]int64, 8), Dropped: make([]bool, 512*8)}
	for i := range c.Weight {
		c.Weight[i] = rand.Float32()
	}
	if n := testing.AllocsPerRun(100, func() { must(t, tw.Call(&c)) }); n != 0 {
		t.Errorf("%v allocations per trace call", n)
	}
	var off *SelWriter
	if n := testing.AllocsPerRun(100, func() { must(t, off.Record(1, 512, 8, expert, weight)) }); n != 0 {
		t.Errorf("%v allocations per disarmed call", n)
	}
}

type selRec struct {
	Layer  int
	Expert []int32
	Bits   []uint32
}

// readSel reads everything and returns the error that ended it, io.EOF included.
func readSel(r io.Reader) (recs []selRec, sr *SelReader, err error) {
	sr = NewSelReader(r)
	for {
		rec, err := sr.Next()
		if err != nil {
			_, again := sr.Next()
			if again != err {
				return nil, sr, fmt.Errorf("error does not stay: %v, then %v", err, again)
			}
			return recs, sr, err
		}
		c := selRec{Layer: rec.Layer, Expert: slices.Clone(rec.Expert)}
		for _, w := range rec.Weight {
			c.Bits = append(c.Bits, math.Float32bits(w))
		}
		recs = append(recs, c)
	}
}

// encodeSel is the format said a second time.
func encodeSel(recs []selRec) []byte {
	var b []byte
	for _, r := range recs {
		b = append(b, byte(r.Layer), byte(len(r.Expert)))
		for i, e := range r.Expert {
			v := r.Bits[i]
			b = append(b, byte(e), byte(e>>8), byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
		}
	}
	return b
}

func TestSelRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	path := filepath.Join(t.TempDir(), "a.sel.bin")
	var want []selRec
	for range 3 { // three runs append to one file; sizes reach past the 1 MiB buffer
		w := openSel(t, path)
		for range 40 {
			layer, tok, k := rng.IntN(256), rng.IntN(200), 1+rng.IntN(255)
			expert, weight := make([]int32, tok*k), make([]float32, tok*k)
			for i := range expert {
				expert[i], weight[i] = rng.Int32N(65536), math.Float32frombits(rng.Uint32())
			}
			for i := range tok {
				r := selRec{Layer: layer, Expert: expert[i*k : i*k+k]}
				for _, v := range weight[i*k : i*k+k] {
					r.Bits = append(r.Bits, math.Float32bits(v))
				}
				want = append(want, r)
			}
			must(t, w.Record(layer, tok, k, expert, weight))
		}
		must(t, w.Close())
	}
	data := readFile(t, path)
	if len(data) < 2*bufBytes {
		t.Fatalf("only %d bytes: the buffer was not exceeded", len(data))
	}
	if !bytes.Equal(data, encodeSel(want)) {
		t.Fatal("bytes differ from the format's second statement")
	}
	for name, src := range map[string]io.Reader{"blocks": bytes.NewReader(data), "halves": iotest.HalfReader(bytes.NewReader(data)), "data with EOF": iotest.DataErrReader(bytes.NewReader(data))} {
		got, sr, err := readSel(src)
		if err != io.EOF || sr.Records() != uint64(len(want)) || sr.Offset() != int64(len(data)) {
			t.Fatalf("%s: %v after %d records, %d bytes", name, err, sr.Records(), sr.Offset())
		}
		if !bytes.Equal(encodeSel(got), data) {
			t.Fatal(name, "records differ")
		}
	}
}

func mixedDump() (data []byte, ends []int) {
	for i, k := range []int{1, 3, 2, 8} {
		r := selRec{Layer: i}
		for j := range k {
			r.Expert = append(r.Expert, int32(j*31+i))
			r.Bits = append(r.Bits, math.Float32bits(1/float32(j+2)))
		}
		data = append(data, encodeSel([]selRec{r})...)
		ends = append(ends, len(data))
	}
	return data, ends
}

// Every length at which a small dump can be cut: the reader delivers all whole records and says where it tore, and a
// writer that appends first repairs the tail.
func TestSelEveryTruncation(t *testing.T) {
	data, ends := mixedDump()
	dir := t.TempDir()
	for n := 0; n <= len(data); n++ {
		whole, keep := 0, 0
		for _, e := range ends {
			if e <= n {
				whole, keep = whole+1, e
			}
		}
		recs, _, err := readSel(iotest.OneByteReader(bytes.NewReader(data[:n])))
		torn := (*TornError)(nil)
		switch {
		case len(recs) != whole:
			t.Fatalf("cut at %d: %d records, want %d", n, len(recs), whole)
		case keep == n && err != io.EOF:
			t.Fatalf("cut at %d: %v, want io.EOF", n, err)
		case keep < n && (!errors.As(err, &torn) || torn.Records != uint64(whole) || torn.Offset != int64(keep)):
			t.Fatalf("cut at %d: %v, want torn at %d after %d", n, err, keep, whole)
		}

		for _, sidecar := range []bool{false, true} {
			path := filepath.Join(dir, fmt.Sprintf("%d-%v", n, sidecar))
			must(t, os.WriteFile(path, data[:n], 0o666))
			if sidecar {
				must(t, writeSelMeta(path, testMeta))
			}
			w, err := OpenSel(path, testMeta)
			if whole == 0 && n > 0 && !sidecar {
				// Nothing says that this is a dump.
				wantErr(t, err, path, fmt.Sprintf("refusing to cut %d bytes at byte 0", n), "no whole record")
				if got := readFile(t, path); !bytes.Equal(got, data[:n]) {
					t.Fatalf("cut at %d: refused, yet changed", n)
				}
				continue
			}
			must(t, err)
			recordGolden(t, w)
			must(t, w.Close())
			if got := readFile(t, path); !bytes.Equal(got, append(slices.Clone(data[:keep]), golden...)) {
				t.Fatalf("cut at %d: after append %x", n, got)
			}
			note := strings.Join(w.Notes(), "\n")
			if want := fmt.Sprintf("cut %d bytes at byte %d, %d whole records kept", n-keep, keep, whole); keep < n != strings.Contains(note, want) {
				t.Fatalf("cut at %d: notes %q", n, note)
			}
		}
	}
}

func TestSelReaderErrors(t *testing.T) {
	_, _, err := readSel(bytes.NewReader(append(slices.Clone(golden), 4, 0, 1, 2)))
	wantErr(t, err, "record 1 at byte 20", "n_sel 0", "not a memra-moe-sel-v1 file")

	broken := errors.New("cable unplugged")
	recs, _, err := readSel(io.MultiReader(bytes.NewReader(append(slices.Clone(golden), 1)), iotest.ErrReader(broken)))
	wantErr(t, err, "record 1 at byte 20", "cable unplugged")
	if !errors.Is(err, broken) || len(recs) != 1 {
		t.Errorf("%d records, %v", len(recs), err)
	}

	_, _, err = readSel(silentReader{})
	if !errors.Is(err, io.ErrNoProgress) {
		t.Error(err)
	}
	torn := &TornError{Records: 7, Offset: 90}
	wantErr(t, torn, "7 whole records", "torn at byte 90")
}

type silentReader struct{}

func (silentReader) Read([]byte) (int, error) { return 0, nil }

func TestSelReaderDoesNotAllocate(t *testing.T) {
	data := dumptest.Read(t, "clustered-288.sel.bin")
	r := NewSelReader(bytes.NewReader(data))
	if n := testing.AllocsPerRun(2000, func() {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per record", n)
	}
}

// A path typed wrong must not cost its owner the end of the file.
func TestOpenSelRefusesForeignFiles(t *testing.T) {
	twice := encodeSel([]selRec{{Layer: 1, Expert: []int32{5, 5}, Bits: []uint32{0, 0}}})
	heavy := encodeSel([]selRec{{Layer: 1, Expert: []int32{5, 6}, Bits: []uint32{0, math.Float32bits(float32(math.NaN()))}}})
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"prose":   {bytes.Repeat([]byte("the quick brown fox jumps over the lazy dog. "), 200), "refusing to cut"},
		"zeros":   {make([]byte, 64), "n_sel 0"},
		"gguf":    {[]byte("GGUF\x03\x00\x00\x00"), "refusing to cut"},
		"twice":   {append(twice, 9), "record at byte 0 has expert 5 twice"},
		"nan":     {append(heavy, 9), "record at byte 0 has weight NaN"},
		"damaged": {append(slices.Clone(golden), 7, 0), "record 1 at byte 20: n_sel 0"},
	} {
		path := filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(path, c.data, 0o666))
		_, err := OpenSel(path, testMeta)
		wantErr(t, err, path, c.want)
		if !bytes.Equal(readFile(t, path), c.data) {
			t.Errorf("%s: changed", name)
		}
		if _, err := os.Stat(path + ".meta.json"); err == nil {
			t.Errorf("%s: sidecar written", name)
		}
	}
}

func TestOpenSelErrors(t *testing.T) {
	dir := t.TempDir()
	_, err := OpenSel("", testMeta)
	wantErr(t, err, "empty path")
	_, err = OpenSel(dir, testMeta)
	wantErr(t, err, dir, "is a directory")
	missing := filepath.Join(dir, "no", "such")
	_, err = OpenSel(missing, testMeta)
	wantErr(t, err, missing, "no such file")
	path := filepath.Join(dir, "a")
	must(t, os.Mkdir(path+".meta.json", 0o777))
	_, err = OpenSel(path, testMeta)
	wantErr(t, err, path+".meta.json")
	if _, err := os.Stat(path + ".meta.json.tmp"); err == nil {
		t.Error("temporary sidecar left behind")
	}
}

func TestSecondWriterIsRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.sel.bin")
	w := openSel(t, path)
	recordGolden(t, w)
	_, err := OpenSel(path, testMeta)
	wantErr(t, err, path, "another writer")
	must(t, w.Close())
	w = openSel(t, path) // the lock goes with the writer
	if len(w.Notes()) != 0 {
		t.Errorf("notes %q", w.Notes())
	}

	path = filepath.Join(dir, "a.csv")
	tw, err := CreateTrace(path, TraceMeta{})
	must(t, err)
	must(t, tw.Call(&TraceCall{T: 1, K: 1, Expert: []int32{1}}))
	must(t, tw.Flush())
	before := readFile(t, path)
	_, err = CreateTrace(path, TraceMeta{Model: "other"})
	wantErr(t, err, path, "another writer")
	if !bytes.Equal(readFile(t, path), before) {
		t.Error("the refused writer replaced the trace")
	}
	must(t, tw.Close())
}

func TestAnotherModelIsNoted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sel.bin")
	w := openSel(t, path)
	recordGolden(t, w)
	must(t, w.Close())
	other := testMeta
	other.NUsed = 1 // another top-k alone is a use of the format, not a mistake
	w, err := OpenSel(path, other)
	must(t, err)
	must(t, w.Close())
	if len(w.Notes()) != 0 {
		t.Errorf("notes %q", w.Notes())
	}
	other.Model, other.NExpert = "big.gguf", 64
	w, err = OpenSel(path, other)
	must(t, err)
	must(t, w.Close())
	if n := strings.Join(w.Notes(), "\n"); !strings.Contains(n, `holds 1 records of model "tiny <moe>.gguf"`) || !strings.Contains(n, `"big.gguf" (qwen3moe, 4 layers, 64 experts)`) {
		t.Errorf("notes %q", n)
	}
}

// The reference dumps, against the exact counts that came with them.
func TestSelReferenceFiles(t *testing.T) {
	for _, name := range []string{"clustered-288", "uniform-288"} {
		var want struct {
			Experts int
			Records int
			Layers  map[string]struct {
				Tokens     int
				FreqMin    float64 `json:"freq_min"`
				FreqMedian float64 `json:"freq_median"`
				FreqMax    float64 `json:"freq_max"`
				Never      int     `json:"never_picked"`
				CoactSum   int     `json:"coact_offdiag_sum"`
				CoactMax   int     `json:"coact_max"`
			}
		}
		must(t, json.Unmarshal(dumptest.Read(t, name+".stats.json"), &want))
		data := dumptest.Read(t, name+".sel.bin")
		recs, _, err := readSel(bytes.NewReader(data))
		if err != io.EOF || len(recs) != want.Records {
			t.Fatalf("%s: %d records, %v", name, len(recs), err)
		}
		if !bytes.Equal(encodeSel(recs), data) {
			t.Errorf("%s: records do not encode to the file", name)
		}
		for key, l := range want.Layers {
			tokens, sum := 0, 0
			freq := make([]int, want.Experts)
			pairs := make(map[[2]int32]int)
			most := 0
			for _, r := range recs {
				if fmt.Sprint(r.Layer) != key {
					continue
				}
				tokens++
				for _, a := range r.Expert {
					freq[a]++
					for _, b := range r.Expert {
						if a != b {
							sum++
							pairs[[2]int32{a, b}]++
							most = max(most, pairs[[2]int32{a, b}])
						}
					}
				}
			}
			slices.Sort(freq)
			at := func(n int) float64 { return float64(freq[n]) / float64(tokens) }
			never, _ := slices.BinarySearch(freq, 1)
			if tokens != l.Tokens || at(0) != l.FreqMin || (at(143)+at(144))/2 != l.FreqMedian || at(287) != l.FreqMax ||
				never != l.Never || sum != l.CoactSum || most != l.CoactMax {
				t.Errorf("%s layer %s: got %d tokens, freq %v %v %v, never %d, coact %d max %d; want %+v",
					name, key, tokens, at(0), (at(143)+at(144))/2, at(287), never, sum, most, l)
			}
		}
	}
	recs, _, err := readSel(bytes.NewReader(dumptest.Read(t, "truncated-288.sel.bin")))
	torn := (*TornError)(nil)
	if !errors.As(err, &torn) || torn.Records != 1000 || torn.Offset != 50000 || len(recs) != 1000 {
		t.Errorf("truncated-288: %d records, %v", len(recs), err)
	}
	// Another engine's dump has no sidecar; its torn tail is repaired all the same.
	path := filepath.Join(t.TempDir(), "a.sel.bin")
	must(t, os.WriteFile(path, dumptest.Read(t, "truncated-288.sel.bin"), 0o666))
	w := openSel(t, path)
	recordGolden(t, w)
	must(t, w.Close())
	recs, _, err = readSel(bytes.NewReader(readFile(t, path)))
	if err != io.EOF || len(recs) != 1001 || w.Records() != 1 {
		t.Errorf("appended: %d records, %v", len(recs), err)
	}
}

// Two goroutines record while a third reads the receipt and a fourth flushes.
func TestSelConcurrentUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sel.bin")
	w := openSel(t, path)
	const calls = 500
	var wg sync.WaitGroup
	for g := range 2 {
		wg.Go(func() {
			for range calls {
				if err := w.Record(g, 2, 3, []int32{1, 2, 3, 4, 5, 6}, make([]float32, 6)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for last := uint64(0); last < 4*calls; {
			n := w.Records()
			if n < last {
				t.Errorf("receipt went from %d to %d", last, n)
				return
			}
			last = n
		}
	})
	wg.Go(func() {
		for range 50 {
			if err := w.Flush(); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	must(t, w.Close())
	if recs, _, err := readSel(bytes.NewReader(readFile(t, path))); err != io.EOF || len(recs) != 4*calls {
		t.Errorf("%d records, %v", len(recs), err)
	}
}
