package profile

import (
	"bytes"
	"encoding/csv"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// record is what a scanner makes of one.
type record struct {
	line   int
	fields []string
}

func scanAll(r io.Reader) (out []record, err error) {
	s := newScanner(r)
	for {
		if err := s.scan(); err == io.EOF {
			return out, nil
		} else if err != nil {
			return out, err
		}
		rec := record{line: s.line}
		for i := range s.fields {
			rec.fields = append(rec.fields, string(s.field(i)))
		}
		out = append(out, rec)
	}
}

// plainScan is the same rules as scanner's, a byte at a time over the whole text.
func plainScan(text string) (out []record, bad bool) {
	line, rec, field, state := 1, record{line: 1}, []byte{}, "start"
	end := func() {
		if len(rec.fields) > 0 || len(field) > 0 || state != "start" {
			out = append(out, record{rec.line, append(rec.fields, string(field))})
		}
		rec, field, state = record{line: line}, nil, "start"
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case state == "quoted" && c == '"':
			if i+1 < len(text) && text[i+1] == '"' {
				field = append(field, '"')
				i++
			} else {
				state = "plain"
			}
		case state == "quoted":
			if c == '\n' {
				line++
			}
			field = append(field, c)
		case c == '"' && state == "start":
			state = "quoted"
		case c == ',':
			rec.fields = append(rec.fields, string(field))
			field, state = nil, "start"
		case c == '\n' || c == '\r':
			if c == '\r' && i+1 < len(text) && text[i+1] == '\n' {
				i++
			}
			line++
			end()
		default:
			state = "plain"
			field = append(field, c)
		}
	}
	bad = state == "quoted"
	end()
	return out, bad
}

func TestScan(t *testing.T) {
	for _, c := range []struct {
		text string
		want [][]string
	}{
		{"", nil},
		{"a,b\nc,d", [][]string{{"a", "b"}, {"c", "d"}}},
		{"a,b\r\n\r\nc,\rd\n\n", [][]string{{"a", "b"}, {"c", ""}, {"d"}}},
		{",\n,,\n", [][]string{{"", ""}, {"", "", ""}}},
		{`"a,b","c""d","` + "\r\n" + `"` + "\n", [][]string{{"a,b", `c"d`, "\r\n"}}},
		{`"a"b,c"d,e""`, [][]string{{"ab", `c"d`, `e""`}}},
		{`""` + "\n", [][]string{{""}}},
		{"-,--,---,\x01,,-\n", [][]string{{"-", "--", "---", "\x01", "", "-"}}}, // '-' is ',' + 1: the borrow of a common trick
		{strings.Repeat("x", 100) + "," + strings.Repeat("y", 31) + ",,z\n", [][]string{{strings.Repeat("x", 100), strings.Repeat("y", 31), "", "z"}}},
		{"a\x00b, c ,é\n", [][]string{{"a\x00b", " c ", "é"}}},
	} {
		for _, slow := range []bool{false, true} {
			var r io.Reader = strings.NewReader(c.text)
			if slow {
				r = iotest.OneByteReader(r)
			}
			got, err := scanAll(r)
			if err != nil {
				t.Errorf("%q: %v", c.text, err)
			}
			var fields [][]string
			for _, g := range got {
				fields = append(fields, g.fields)
			}
			if !slices.EqualFunc(fields, c.want, slices.Equal) {
				t.Errorf("%q: got %q, want %q", c.text, fields, c.want)
			}
		}
	}
}

// encoding/csv agrees on the real file, with and without quotes around its fields.
func TestScanAgreesWithEncodingCSV(t *testing.T) {
	data := referenceCSV(t)
	for _, text := range [][]byte{data, quoteAll(data), unpack(t, "testdata/v1_oft_integral.csv.gz")} {
		want, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		got, err := scanAll(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want) {
			t.Fatalf("%d records, want %d", len(got), len(want))
		}
		for i := range got {
			if !slices.Equal(got[i].fields, want[i]) {
				t.Fatalf("record %d is %q, want %q", i, got[i].fields, want[i])
			}
		}
	}
}

// A summary needs the first fields only; those must be the same whatever follows is merely counted.
func TestScanNeed(t *testing.T) {
	s := newScanner(bytes.NewReader(referenceCSV(t)))
	s.need = 5
	for {
		if err := s.scan(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if s.fields != 111 && s.fields != len(Columns()) {
			t.Fatalf("line %d: %d fields", s.line, s.fields)
		}
		if want := bytes.SplitN(s.rec, []byte{','}, 6); string(s.field(4)) != string(want[4]) {
			t.Fatalf("line %d: field 4 is %q, want %q", s.line, s.field(4), want[4])
		}
	}
}

func FuzzScan(f *testing.F) {
	for _, s := range []string{"a,b\r\nc,\"d\n,\"\"e\"\n", "\"", "a\rb\r\n\"c\"d,\"\"\n", ",,,,,,,,-,-,\n", strings.Repeat("a", 40) + ",b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want, bad := plainScan(text)
		for _, r := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text))} {
			got, err := scanAll(r)
			if bad != (err != nil) {
				t.Fatalf("%q: error %v, the quote stays open: %v", text, err, bad)
			}
			if bad {
				continue
			}
			if !slices.EqualFunc(got, want, func(a, b record) bool { return a.line == b.line && slices.Equal(a.fields, b.fields) }) {
				t.Fatalf("%q: got %+v, want %+v", text, got, want)
			}
		}
	})
}

// FuzzRead: no file makes the reader panic; an error has its place; a lenient reading takes all that a strict one takes and
// reports the same.
func FuzzRead(f *testing.F) {
	f.Add(opsFile("eager,signpost", opRow("Matmul", 1), "eager_end,signpost", "trace,signpost", opRow("Matmul", 1), "trace_end,signpost"))
	f.Add("\ufeffOP NAME,OP TYPE,INPUT_0_X,INPUT_0_Y_PAD[LOGICAL]\neager,signpost,,\n\"a\nb\",x, 7,32[16]\n")
	f.Add(opsHeader + "\na,b,1,x,-1,1e5,.5,5.\n\"a\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Read(strings.NewReader(text), "ops.csv", Options{})
		if err != nil {
			if e, ok := err.(*Error); !ok || e.Line == 0 || e.File == "" {
				t.Fatalf("%q: error %v has no place", text, err)
			}
		}
		l, lerr := Read(strings.NewReader(text), "ops.csv", Options{Lenient: true})
		if err == nil && lerr != nil {
			t.Fatalf("%q: lenient: %v", text, lerr)
		}
		if lerr != nil {
			return
		}
		o := ReportOptions{Whole: true}
		lenient := output(t, l.Report(o).WriteJSON)
		if err == nil {
			equalText(t, "lenient report", lenient, output(t, p.Report(o).WriteJSON))
		}
		r := l.Report(o)
		r.Against = Compare(l.Report(o), r)
		output(t, r.WriteMarkdown)
		output(t, r.WriteHTML)
	})
}
