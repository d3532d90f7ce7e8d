package dump

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func openSelRows(t testing.TB, path string) *SelWriter {
	t.Helper()
	meta := testMeta
	meta.Rows = true
	w, err := OpenSel(path, meta)
	must(t, err)
	t.Cleanup(func() { w.Close() })
	return w
}

// recordFor records a layer call of k experts a token for the rows.
func recordFor(t testing.TB, w *SelWriter, layer, k int, rows []Row, pass int64) {
	t.Helper()
	expert, weight := make([]int32, k*len(rows)), make([]float32, k*len(rows))
	for i := range expert {
		expert[i], weight[i] = int32(i), 0.5
	}
	must(t, w.RecordRows(layer, len(rows), k, expert, weight, rows, pass))
}

var goldenRows = []Row{{4, 6, Prefill, 30}, {4, 6, Prefill, 31}, {300, 9, Decode, 3}}

// goldenSidecar is the example of the format's description: two layers of pass 17 with goldenRows, and one of pass 18.
func goldenSidecar() []byte {
	b := []byte("SLUICERW\x01\x00\x00\x00\x14\x00\x00\x00")
	groups := []byte{
		2, 17, 2, // 2 calls, pass 17, 2 spans
		2, 4, 6, 60, // 2 rows of sequence 4, turn 6, from position 30, prefill
		1, 0xac, 0x02, 9, 7, // 1 row of sequence 300, turn 9, position 3, decode
		1, 18, 1, // 1 call, pass 18, 1 span
		1, 0xac, 0x02, 9, 9,
	}
	head := make([]byte, rowsBlockBytes)
	head[8], head[12] = 7, byte(len(groups))
	block := append(head, groups...)
	binary.LittleEndian.PutUint32(block[16:], rowsSum(block))
	return append(b, block...)
}

func TestRowsGoldenBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sel.bin")
	w := openSelRows(t, path)
	recordFor(t, w, 0, 2, goldenRows, 17)
	recordFor(t, w, 1, 2, goldenRows, 17)
	recordFor(t, w, 0, 2, []Row{{300, 9, Decode, 4}}, 18)
	must(t, w.RecordRows(0, 0, 2, nil, nil, nil, 0)) // an empty call records nothing
	must(t, w.Close())
	must(t, w.Close())
	if got, want := readFile(t, path+".rows"), goldenSidecar(); !bytes.Equal(got, want) {
		t.Errorf("sidecar\n%x, want\n%x", got, want)
	}
	meta, err := ReadSelMeta(path)
	must(t, err)
	if !meta.Rows || !bytes.Contains(readFile(t, path+".meta.json"), []byte(`"rows": true`)) {
		t.Error("the other sidecar does not say that there is one")
	}
}

type pairRec struct {
	Rec   selRec
	Row   PassRow
	Known bool
}

// readPairs reads a dump and its sidecar to the dump's end.
func readPairs(sel, rows io.Reader) (out []pairRec, p *SelRowReader, err error) {
	if p, err = NewSelRowReader(sel, rows); err != nil {
		return nil, nil, err
	}
	for {
		rec, row, known, err := p.Next()
		if err != nil {
			return out, p, err
		}
		s := selRec{Layer: rec.Layer, Expert: slices.Clone(rec.Expert)}
		for _, w := range rec.Weight {
			s.Bits = append(s.Bits, math.Float32bits(w))
		}
		out = append(out, pairRec{s, row, known})
	}
}

func readPairFiles(t testing.TB, path string) ([]pairRec, *SelRowReader) {
	t.Helper()
	out, p, err := readPairs(bytes.NewReader(readFile(t, path)), bytes.NewReader(readFile(t, path+".rows")))
	if err != io.EOF {
		t.Fatal(err)
	}
	return out, p
}

// schedule draws layer calls as an engine makes them: sequences come, take their prompts in chunks, decode and leave, and
// every pass has its rows in each layer.
func schedule(rng *rand.Rand, passes, layers, most int, call func(layer int, rows []Row, pass int64)) {
	type seq struct {
		Row
		prompt int
	}
	var open []seq
	next, turns := int32(0), int32(0)
	for pass := range passes {
		if len(open) == 0 || len(open) < most && rng.IntN(3) == 0 {
			open = append(open, seq{Row{next, turns, Prefill, int32(rng.IntN(3) * 1000)}, 1 + rng.IntN(3*most)})
			next, turns = next+1, turns+1
		}
		var rows []Row
		for i := range open {
			s := &open[i]
			n := 1
			if s.prompt > 0 {
				n = min(s.prompt, 1+rng.IntN(2*most))
				s.prompt -= n
			} else {
				s.Phase = Decode
			}
			for range n {
				rows = append(rows, s.Row)
				s.Step++
			}
		}
		for layer := range layers {
			call(layer, rows, int64(pass+1))
		}
		open = slices.DeleteFunc(open, func(s seq) bool { return s.Phase == Decode && rng.IntN(12) == 0 })
		for i := range open {
			if s := &open[i]; s.Phase == Decode && rng.IntN(20) == 0 { // another turn
				s.Turn, s.Phase, s.prompt = turns, Prefill, 1+rng.IntN(most)
				turns++
			}
		}
	}
}

// The records with their sidecar give back what was recorded, wherever the two were flushed; the dump's bytes are those of
// one without; and the sidecar is small beside it.
func TestRowsRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 3))
	for _, c := range []struct{ passes, layers, most, flush int }{{40, 3, 3, 0}, {60, 5, 8, 7}, {100, 48, 16, 0}, {4, 2, 5000, 0}, {30, 1, 2, 1}} {
		dir := t.TempDir()
		path, plain := filepath.Join(dir, "a"), filepath.Join(dir, "b")
		w, v := openSelRows(t, path), openSel(t, plain)
		var want []pairRec
		schedule(rng, c.passes, c.layers, c.most, func(layer int, rows []Row, pass int64) {
			k := 1 + rng.IntN(8)
			expert, weight := make([]int32, k*len(rows)), make([]float32, k*len(rows))
			for i := range expert {
				expert[i], weight[i] = int32(rng.IntN(256)), rng.Float32()
			}
			must(t, w.RecordRows(layer, len(rows), k, expert, weight, rows, pass))
			must(t, v.RecordRows(layer, len(rows), k, expert, weight, rows, pass)) // not asked for rows: the records alone
			for i, r := range rows {
				rec := selRec{Layer: layer, Expert: expert[i*k : i*k+k]}
				for _, x := range weight[i*k : i*k+k] {
					rec.Bits = append(rec.Bits, math.Float32bits(x))
				}
				want = append(want, pairRec{rec, PassRow{r, pass}, true})
			}
			if c.flush > 0 && rng.IntN(c.flush) == 0 {
				must(t, w.Flush())
			}
		})
		must(t, w.Close())
		must(t, v.Close())
		got, p := readPairFiles(t, path)
		if !reflect.DeepEqual(got, want) || p.RowsTorn() != nil {
			t.Errorf("%+v: %d records, want %d, or others", c, len(got), len(want))
		}
		if !bytes.Equal(readFile(t, path), readFile(t, plain)) {
			t.Errorf("%+v: the sidecar changes the dump", c)
		}
		names, _ := filepath.Glob(plain + "*")
		if len(names) != 2 {
			t.Errorf("%+v: a dump without rows left %v", c, names)
		}
		if size := len(readFile(t, path+".rows")); c.layers == 48 && size*20 > len(want) {
			t.Errorf("%d bytes for %d records", size, len(want))
		}
		// And in other block sizes of the source.
		again, _, err := readPairs(bytes.NewReader(readFile(t, path)), iotest.OneByteReader(bytes.NewReader(readFile(t, path+".rows"))))
		if err != io.EOF || !reflect.DeepEqual(again, want) {
			t.Error(err)
		}
	}
}

func TestRowsAreChecked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sel.bin")
	w := openSelRows(t, path)
	expert, weight := []int32{1, 2, 3}, []float32{1, 1, 1}
	for _, c := range []struct {
		rows []Row
		pass int64
		want string
	}{
		{goldenRows[:2], 1, "layer 5: rows of 2 tokens, want 3"},
		{goldenRows, 0, "pass 0, want 1.."},
		{goldenRows, maxPass + 1, "pass 9007199254740992"},
		{[]Row{{}, {}, {Seq: -1}}, 1, "token 2 of 3: sequence -1"},
		{[]Row{{}, {Phase: 2}, {}}, 1, "token 1 of 3: phase 2"},
		{[]Row{{}, {Step: math.MaxInt32}, {}}, 1, "position 2147483647, want below"},
	} {
		wantErr(t, w.RecordRows(5, 3, 1, expert, weight, c.rows, c.pass), path, c.want)
	}
	wantErr(t, w.Record(5, 3, 1, expert, weight), path, "rows of 0 tokens, want 3")
	must(t, w.RecordRows(5, 3, 1, expert, weight, []Row{{math.MaxInt32, math.MaxInt32, Decode, math.MaxInt32 - 1}, {}, {}}, maxPass))
	must(t, w.Close())
	got, _ := readPairFiles(t, path)
	if len(got) != 3 || got[0].Row != (PassRow{Row{math.MaxInt32, math.MaxInt32, Decode, math.MaxInt32 - 1}, maxPass}) || got[2].Row != (PassRow{Pass: maxPass}) {
		t.Errorf("%+v", got)
	}
	var off *SelWriter
	must(t, off.RecordRows(-1, -1, -1, nil, nil, nil, 0))
}

// Runs that say whose their records are and runs that do not share a dump: each record has its own row, or none.
func TestRowsOfSeveralRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sel.bin")
	var want []bool
	for run := range 6 {
		if run%3 == 1 {
			w := openSel(t, path)
			recordGolden(t, w)
			must(t, w.Close())
			want = append(want, false)
			continue
		}
		w := openSelRows(t, path)
		recordFor(t, w, run, 2, goldenRows, int64(run+1))
		must(t, w.Close())
		want = append(want, true, true, true)
	}
	got, _ := readPairFiles(t, path)
	for i, p := range got {
		if p.Known != want[i] || p.Known && (p.Row.Pass != int64(p.Rec.Layer+1) || p.Row.Row.Seq != goldenRows[0].Seq && p.Row.Row.Seq != 300) {
			t.Errorf("record %d: %+v", i, p)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d records", len(got))
	}
	// The dump is emptied: what it gets next are other records, whether their run has rows or not.
	for _, rows := range []bool{true, false} {
		must(t, os.Truncate(path, 0))
		w := openSel(t, path)
		if rows {
			must(t, w.Close())
			w = openSelRows(t, path)
		}
		recordGoldenRows(t, w)
		must(t, w.Close())
		if rows {
			if got, _ := readPairFiles(t, path); len(got) != 3 || got[2].Row != (PassRow{goldenRows[2], 1}) {
				t.Errorf("%+v", got)
			}
		} else if _, err := os.Stat(path + ".rows"); err == nil || !strings.Contains(fmt.Sprint(w.Notes()), "of a dump that is gone: removed") {
			t.Errorf("the rows of a dump that is gone are still there: %v", w.Notes())
		}
	}
	// What is not ours stays.
	must(t, os.Truncate(path, 0))
	must(t, os.WriteFile(path+".rows", []byte("my notes on the rows"), 0o666))
	must(t, openSel(t, path).Close())
	meta := testMeta
	meta.Rows = true
	_, err := OpenSel(path, meta)
	wantErr(t, err, path+".rows", "cannot append", `begins with "my notes"`)
	if string(readFile(t, path+".rows")) != "my notes on the rows" {
		t.Error("a file that is no sidecar was changed")
	}
}

func recordGoldenRows(t testing.TB, w *SelWriter) {
	t.Helper()
	recordFor(t, w, 0, 2, goldenRows, 1)
}

// Whatever is left of the dump and of its sidecar, the next run goes on behind the dump's whole records, and no record has
// the row of another.
func TestRowsAfterTear(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.sel.bin")
	w := openSelRows(t, path)
	for pass := range 3 { // blocks of 6, 6 and 3 records
		recordFor(t, w, 0, 1, goldenRows, int64(pass+1))
		if pass < 2 {
			recordFor(t, w, 1, 1, []Row{{7, 7, Decode, int32(pass)}, {8, 8, Prefill, 0}, {8, 8, Prefill, 1}}, int64(pass+1))
		}
		must(t, w.Flush())
	}
	must(t, w.Close())
	dump, side := readFile(t, path), readFile(t, path+".rows")
	whole, _, err := readPairs(bytes.NewReader(dump), bytes.NewReader(side))
	if err != io.EOF || len(whole) != 15 {
		t.Fatal(len(whole), err)
	}
	var ends []int // of the blocks
	r, err := NewRowsReader(bytes.NewReader(side))
	must(t, err)
	for r.block() == nil {
		ends, r.number = append(ends, int(r.end)), r.last
	}
	if len(ends) != 3 {
		t.Fatalf("blocks end at %v", ends)
	}
	for _, c := range []struct{ sel, rows int }{{0, -1}, {-1, 0}} {
		for cut := 0; cut <= max(len(dump)*(1+c.sel), len(side)*(1+c.rows)); cut++ {
			sel, rows := dump, side
			if c.sel == 0 {
				sel = dump[:cut]
			} else {
				rows = side[:cut]
			}
			must(t, os.WriteFile(path, sel, 0o666))
			must(t, os.WriteFile(path+".rows", rows, 0o666))
			kept := len(sel) / 8
			covered := 15
			if c.rows == 0 {
				covered = []int{0, 6, 12, 15}[len(slices.DeleteFunc(slices.Clone(ends), func(e int) bool { return e > cut }))]
			}
			w := openSelRows(t, path)
			recordFor(t, w, 3, 1, []Row{{9, 9, Decode, 9}}, 9)
			must(t, w.Close())
			got, p := readPairFiles(t, path)
			if len(got) != kept+1 || p.RowsTorn() != nil {
				t.Fatalf("cut at %d: %d records, want %d; torn %v", cut, len(got), kept+1, p.RowsTorn())
			}
			for i, g := range got[:kept] {
				if want := whole[i]; g.Known != (i < covered) || g.Known && g.Row != want.Row {
					t.Fatalf("cut at %d: record %d is of %+v (%t), want %+v (%t)", cut, i, g.Row, g.Known, want.Row, i < covered)
				}
			}
			if last := got[kept]; !last.Known || last.Row != (PassRow{Row{9, 9, Decode, 9}, 9}) {
				t.Fatalf("cut at %d: the new record is of %+v", cut, last)
			}
		}
	}
}

// A tear, or a disk without room, leaves no record with another's row, and the reader says where it tore.
// A run without rows goes on after a kill that left rows of more records than the dump has: its records are nobody's.
func TestRowsThenNone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.sel.bin")
	w := openSelRows(t, path)
	recordGoldenRows(t, w)
	must(t, w.Close())
	sel, side := readFile(t, path), readFile(t, path+".rows")
	all, _ := readPairFiles(t, path)
	for cut := range len(sel) + 1 {
		must(t, os.WriteFile(path, sel[:cut], 0o666))
		must(t, os.WriteFile(path+".rows", side, 0o666))
		_, left := wholeSel(sel[:cut])
		w := openSel(t, path)
		must(t, w.Record(7, 3, 1, []int32{1, 2, 3}, []float32{1, 1, 1}))
		must(t, w.Close())
		if left == 0 {
			if _, err := os.Stat(path + ".rows"); err == nil {
				t.Fatal("the sidecar of a dump that is gone is still there")
			}
			continue
		}
		got, _ := readPairFiles(t, path)
		if len(got) != int(left)+3 {
			t.Fatalf("cut at %d: %d records, want %d and 3", cut, len(got), left)
		}
		for i, p := range got {
			if p.Known != (i < int(left)) || p.Known && p.Row != all[i].Row {
				t.Fatalf("cut at %d: record %d of %d and 3: %+v", cut, i, left, p)
			}
		}
	}
	// One that is broken stays as it is: its reader says so.
	side[len(side)-1] ^= 1
	must(t, os.WriteFile(path+".rows", side, 0o666))
	w = openSel(t, path)
	must(t, w.Close())
	if notes := strings.Join(w.Notes(), "; "); !strings.Contains(notes, "left as it is") || !bytes.Equal(readFile(t, path+".rows"), side) {
		t.Errorf("notes %q", notes)
	}
}

func TestRowsTorn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sel.bin")
	w := openSelRows(t, path)
	for pass := range 2 {
		recordFor(t, w, 0, 1, goldenRows, int64(pass+1))
		must(t, w.Flush())
	}
	must(t, w.Close())
	dump, side := readFile(t, path), readFile(t, path+".rows")
	second := rowsHeadBytes + (len(side)-rowsHeadBytes)/2
	for cut := range len(side) {
		got, p, err := readPairs(bytes.NewReader(dump), bytes.NewReader(side[:cut]))
		if cut < rowsHeadBytes {
			wantErr(t, err, "dump: rows: shorter than its head")
			continue
		}
		whole := 0
		if cut >= second {
			whole = 3
		}
		known := slices.IndexFunc(append(got, pairRec{}), func(p pairRec) bool { return !p.Known })
		if err != io.EOF || len(got) != 6 || known != whole {
			t.Fatalf("cut at %d: %v, %d records, %d known", cut, err, len(got), known)
		}
		torn := p.RowsTorn()
		if at := cut == rowsHeadBytes || cut == second; at != (torn == nil) {
			t.Fatalf("cut at %d: torn %v", cut, torn)
		}
		if torn != nil && (torn.Records != uint64(whole) || torn.Offset != int64(rowsHeadBytes+(second-rowsHeadBytes)*whole/3)) {
			t.Fatalf("cut at %d: %v", cut, torn)
		}
	}
	for bit := range 8 * len(side) {
		bad := slices.Clone(side)
		bad[bit/8] ^= 1 << (bit % 8)
		got, p, err := readPairs(bytes.NewReader(dump), bytes.NewReader(bad))
		if err == io.EOF && p.RowsTorn() == nil {
			t.Fatalf("bit %d: read without a word", bit)
		}
		for i, g := range got {
			if g.Known && g.Row != (PassRow{goldenRows[i%3], int64(i/3 + 1)}) {
				t.Fatalf("bit %d: record %d is of %+v", bit, i, g.Row)
			}
		}
	}
}

// A disk that fills up under the sidecar ends the recording: every record in the dump has its row, the receipt equals the
// file, and the error stays.
func TestRowsDiskFull(t *testing.T) {
	for room := rowsHeadBytes; room < 90; room++ {
		for _, noTruncate := range []bool{false, true} {
			sel, side := &fakeDisk{room: math.MaxInt}, &fakeDisk{data: appendRowsHead(nil), room: room, noTruncate: noTruncate}
			w := newSelWriter(sel)
			w.rows = newRowsSink("fake.sel.bin.rows", side, rowsHeadBytes, 0)
			w.sink.before = w.rows.flush
			var err error
			for pass := 1; err == nil; pass++ {
				recordFor(t, w, 0, 1, goldenRows, int64(pass))
				err = w.Flush()
			}
			wantErr(t, err, "fake.sel.bin.rows", "no space left on device")
			if !errors.Is(err, w.Flush()) || w.RecordRows(0, 1, 1, []int32{1}, []float32{1}, goldenRows[:1], 9) != err || w.Close() != err || w.Close() != err || side.closed != 1 {
				t.Fatal("the error does not stay")
			}
			got, p, err := readPairs(bytes.NewReader(sel.data), bytes.NewReader(side.data))
			if err != io.EOF || uint64(len(got)) != w.Records() || len(got)%3 != 0 || !noTruncate && p.RowsTorn() != nil {
				t.Fatalf("room %d: %v, %d records, %d by the receipt", room, err, len(got), w.Records())
			}
			for i, g := range got {
				if !g.Known || g.Row.Row != goldenRows[i%3] || g.Row.Pass != int64(i/3+1) {
					t.Fatalf("room %d: record %d: %+v", room, i, g)
				}
			}
		}
	}
}

func TestRowsDoNotAllocate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sel.bin")
	w := openSelRows(t, path)
	expert, weight, rows := make([]int32, 512*8), make([]float32, 512*8), make([]Row, 512)
	for i := range rows {
		rows[i] = Row{int32(i / 3), int32(i / 3), Prefill, int32(i % 3)}
	}
	pass := int64(0)
	if n := testing.AllocsPerRun(200, func() {
		pass++
		for layer := range 2 {
			must(t, w.RecordRows(layer, 512, 8, expert, weight, rows, pass))
		}
	}); n != 0 {
		t.Errorf("%v allocations per pass", n)
	}
	must(t, w.Close())
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	side, err := os.Open(path + ".rows")
	must(t, err)
	defer side.Close()
	p, err := NewSelRowReader(f, side)
	must(t, err)
	if n := testing.AllocsPerRun(100000, func() {
		if _, _, known, err := p.Next(); err != nil || !known {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per record", n)
	}
}

func FuzzRowsReader(f *testing.F) {
	f.Add(goldenSidecar(), true)
	f.Add(append(goldenSidecar(), goldenSidecar()[rowsHeadBytes:]...), true)
	f.Add(append(goldenSidecar(), 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1), true)
	f.Add([]byte(rowsMagic), false)
	f.Fuzz(func(t *testing.T, data []byte, mend bool) {
		if mend { // a right checksum, so that what it guards is reached
			for at := rowsHeadBytes; len(data)-at > rowsBlockBytes; {
				size := binary.LittleEndian.Uint32(data[at+12:])
				if uint64(size) > uint64(len(data)-at-rowsBlockBytes) {
					break
				}
				block := data[at : at+rowsBlockBytes+int(size)]
				binary.LittleEndian.PutUint32(block[16:], rowsSum(block))
				at += len(block)
			}
		}
		r, err := NewRowsReader(bytes.NewReader(data))
		if err != nil {
			return
		}
		s := newRowsSink("again", &fakeDisk{room: math.MaxInt}, rowsHeadBytes, 0)
		last, most := uint64(0), 1<<16
		for {
			n, row, err := r.Next()
			if err != nil {
				if _, _, again := r.Next(); again != err {
					t.Fatal("the error does not stay")
				}
				break
			}
			if r.Records() > 1 && n <= last || row.check() != nil || row.Pass < 1 || row.Pass > maxPass {
				t.Fatalf("record %d after %d: %+v", n, last, row)
			}
			last = n
			must(t, checkRows(1, []Row{row.Row}, row.Pass))
			must(t, s.add([]Row{row.Row}, row.Pass))
			if most--; most == 0 { // few bytes can stand for many rows
				break
			}
		}
		must(t, s.flush())
	})
}
