package profile

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

// Every kind of broken file, the error that it must give, and what a lenient reading makes of it.
func TestBadFiles(t *testing.T) {
	head := opsHeader + "\n"
	sections := func(rows ...string) string {
		return opsFile(append(append([]string{"eager,signpost"}, rows...), "eager_end,signpost")...)
	}
	for _, c := range []struct {
		name, csv, err string
		lenient        string // part of a note, or "error: " and the error
	}{
		{"empty", "", "line 1: empty file: no op to summarise", "empty file: nothing to summarise"},
		{"blank lines", "\n\r\n\n", "line 1: empty file: no op to summarise", "empty file: nothing"},
		{"header only", head, "line 1: a header of 8 columns and no rows: no op to summarise", "a header of 8 columns and no rows: nothing to summarise"},
		{"not ops", "a,b\n1,2\n", "line 1: neither OP CODE nor OP NAME among the 2 columns of the header: not an ops CSV", "error: line 1: neither"},
		{"short row", sections("Matmul,tt_dnn_device") + "Halo,tt_dnn_device,0\n", "line 5, column 4 (DEVICE ARCH): the record ends after 3 fields, the header has 8",
			"records with too few fields: 1, the first: ops.csv: line 5, column 4 (DEVICE ARCH): the record ends after 3 fields, the header has 8"},
		{"long row", sections(opRow("Matmul", 1) + ",x,y"), "line 3, column 9: 10 fields, the header has 8", "records with too many fields: 1, the first"},
		{"open quote", head + "Matmul,\"tt_dnn_device,0\nHalo,,,\n", "line 2, column 2: the quote that opens this field never closes", "error: line 2, column 2: the quote"},
		{"open quote later", head + "\"a\nb\",\"c\n\n\",0,,,,,0\nHalo,,\"x", "line 6, column 3: the quote that opens this field never closes", "error: line 6, column 3: the quote"},
		{"open quote in the header", "OP CODE,\"OP TYPE\n", "line 1, column 2: the quote that opens this field never closes", "error: line 1, column 2"},
		{"text", sections("Matmul,tt_dnn_device,0,,64,10,5,fast"), `line 3, column 8 (DEVICE KERNEL DURATION [ns]): "fast" is not a number`, `cells that are text where a number belongs: 1, the first: ops.csv: line 3, column 8`},
		{"grouped digits", sections(`Matmul,tt_dnn_device,0,,64,10,"11,035",7`), `line 3, column 7 (DEVICE FW DURATION [ns]): "11,035" is not a number`, "cells that are text"},
		{"not finite", sections("Matmul,tt_dnn_device,0,,64,10,nan,1"), `line 3, column 7 (DEVICE FW DURATION [ns]): "nan" is not a number`, "cells that are text"},
		{"infinite", sections("Matmul,tt_dnn_device,0,,64,10,1e999,1"), `line 3, column 7 (DEVICE FW DURATION [ns]): "1e999" is not a number`, "cells that are text"},
		{"text after lines in quotes", sections("\"Mat\nmul\",tt_dnn_device,0,,\"6\n4\",x,1,1"), `line 4, column 5 (CORE COUNT): "6\n4" is not a number`, "cells that are text where a number belongs: 2"},
		{"nested section", opsFile("eager,signpost", opRow("A", 1), "trace,signpost", opRow("A", 1), "trace_end,signpost"),
			"line 4, column 1 (OP CODE): section trace begins, but section eager of line 2 has not ended", "sections that begin inside another: 1"},
		{"section ends twice", opsFile("eager,signpost", opRow("A", 1), "eager_end,signpost", "eager_end,signpost"),
			"line 5, column 1 (OP CODE): section eager ends, but no section is open", "section ends without a beginning: 1"},
		{"wrong end", opsFile("eager,signpost", opRow("A", 1), "trace_end,signpost"),
			"line 4, column 1 (OP CODE): section trace ends, but the open one is eager of line 2", "section ends without a beginning: 1"},
		{"open section", opsFile("eager,signpost", opRow("A", 1), "eager_end,signpost", "trace,signpost", opRow("A", 1)),
			"line 5, column 1 (OP CODE): section trace never ends", "sections that never end: 1"},
		{"two chips", sections(opRow("A", 1), "A,tt_dnn_device,1,blackhole,64,10,0,1"),
			"line 4, column 3 (DEVICE ID): ops of 2 devices in one file: 0 (1 ops), 1 (1 ops); choose one, or all of them summed", "summed over 2 devices: 0 (1 ops), 1 (1 ops)"},
		{"two architectures", sections(opRow("A", 1), "A,tt_dnn_device,0,wormhole_b0,64,10,0,1"),
			`line 4, column 4 (DEVICE ARCH): "wormhole_b0", but "blackhole" on line 3: one report has one architecture`, "ops of another architecture: 1"},
		{"bytes that are no text", sections("\xff\xfe,tt_dnn_device"), `line 3, column 1 (OP CODE): "\xff\xfe" is not UTF-8`, "error: line 3, column 1"},
		{"binary header", "\x00\xff\x00,b\n", "line 1, column 1: column name \"\\x00\\xff\\x00\" is not UTF-8", "error: line 1, column 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Read(strings.NewReader(c.csv), "ops.csv", Options{})
			var place *Error
			if !errors.As(err, &place) || place.Line == 0 {
				t.Fatalf("error %v has no line", err)
			}
			if got := err.Error(); got != "profile: ops.csv: "+c.err {
				t.Errorf("error is\n%s\nwant\nprofile: ops.csv: %s", got, c.err)
			}
			p, err := Read(strings.NewReader(c.csv), "ops.csv", Options{Lenient: true})
			if want, isErr := strings.CutPrefix(c.lenient, "error: "); isErr {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("lenient: %v, want %q", err, want)
				}
				return
			}
			if err != nil {
				t.Fatalf("lenient: %v", err)
			}
			if !strings.Contains(strings.Join(p.Notes, "\n"), c.lenient) {
				t.Errorf("lenient notes are %q, want %q", p.Notes, c.lenient)
			}
			output(t, p.Report(ReportOptions{Whole: true}).WriteHTML)
		})
	}
}

// What a comparable tool got wrong about files that are thin rather than broken: each gives a report and says what it lacks.
func TestThinFiles(t *testing.T) {
	lost := "Matmul,tt_dnn_device,0,blackhole,64,,,"
	for _, c := range []struct {
		name, csv    string
		eager, trace int
		notes        []string
	}{
		{"section at the very end", opsFile(opRow("A", 1), "eager,signpost", "eager_end,signpost"), 0, 0,
			[]string{"section eager of line 3 has no op: it ran, and its ops are lost", "section trace never ran: no signpost of that name", "1 ops lie outside the sections"}},
		{"no second input", opsFile("trace,signpost", opRow("A", 1), "trace_end,signpost"), 0, 1, []string{"section eager never ran: no signpost of that name"}},
		{"signpost in the middle", opsFile("eager,signpost", opRow("A", 1), "checkpoint,signpost", opRow("B", 1), "eager_end,signpost",
			"trace,signpost", opRow("A", 1), opRow("B", 1), "loop 1,signpost", "trace_end,signpost"), 2, 2, nil},
		{"lost by the profiler", opsFile("eager,signpost", opRow("Matmul", 1), lost, "Host,tt_dnn_cpu", lost, "eager_end,signpost"), 4, 0,
			[]string{"section trace never ran: no signpost of that name",
				"section eager: 2 of 3 device ops have no device time and count as 0 (2 Matmul), the first on line 4: the profiler lost them"}},
		{"sequences part", opsFile("eager,signpost", opRow("A", 1), opRow("B", 1), "eager_end,signpost", "trace,signpost", opRow("A", 1), opRow("C", 1), "trace_end,signpost"), 2, 2,
			[]string{"eager has 2 ops and trace 2; they part at op 1 (B against C), so the trace does not inherit blocks and layers"}},
		{"trace cut", opsFile("eager,signpost", opRow("A", 1), opRow("B", 1), "eager_end,signpost", "trace,signpost", opRow("A", 1), "trace_end,signpost"), 2, 1,
			[]string{"eager has 2 ops and trace 1; they part at op 1 (where the shorter one ends), so the trace does not inherit blocks and layers"}},
		{"repeated", opsFile("eager,signpost", opRow("A", 1), "eager_end,signpost", "eager,signpost", opRow("B", 1), "eager_end,signpost"), 2, 0,
			[]string{"section eager begins 2 times: its ops are put together"}},
		{"few columns", "\ufeffOP NAME,x,x\nMatmul,1,2\n", 0, 0, []string{"a byte order mark stands before the header",
			"the file has no column OP TYPE, DEVICE KERNEL DURATION [ns], DEVICE FW DURATION [ns], OP TO OP LATENCY [ns], DEVICE FW START CYCLE, DEVICE FW END CYCLE, CORE COUNT: taken as empty",
			"column names stand more than once in the header: the last column of a name counts",
			"no section: the file has no signpost named eager or trace; its 1 ops can be summarised as a whole"}},
	} {
		p := read(t, c.csv, Options{})
		r := p.Report(ReportOptions{})
		if r.Eager.Ops != c.eager || r.Trace.Ops != c.trace {
			t.Errorf("%s: eager %d, trace %d; want %d, %d", c.name, r.Eager.Ops, r.Trace.Ops, c.eager, c.trace)
		}
		for _, n := range c.notes {
			if !slices.Contains(p.Notes, n) {
				t.Errorf("%s: notes\n%s\nlack\n%s", c.name, strings.Join(p.Notes, "\n"), n)
			}
		}
		output(t, r.WriteHTML)
	}
}

func TestDevices(t *testing.T) {
	csv := opsFile("eager,signpost", opRow("A", 1000), "B,tt_dnn_device,4,blackhole,64,10,0,2000", "Host,tt_dnn_cpu", "B,tt_dnn_device,4,blackhole,64,10,0,2000", "eager_end,signpost")
	for _, c := range []struct {
		device string
		ops    int
		note   string
	}{
		{"4", 3, "device 4 of 2: the file has 0 (1 ops), 4 (2 ops)"},
		{"0", 2, "device 0 of 2"},
		{AllDevices, 4, "the devices did not run the same number of ops: compare them one by one"},
	} {
		p := read(t, csv, Options{Device: c.device})
		if n := p.Report(ReportOptions{}).Eager.Ops; n != c.ops {
			t.Errorf("device %s: %d ops, want %d", c.device, n, c.ops)
		}
		if !strings.Contains(strings.Join(p.Notes, "\n"), c.note) {
			t.Errorf("device %s: notes %q lack %q", c.device, p.Notes, c.note)
		}
	}
	_, err := Read(strings.NewReader(csv), "ops.csv", Options{Device: "7"})
	if err == nil || !strings.Contains(err.Error(), `no op of device "7"; the file has 0 (1 ops), 4 (2 ops)`) {
		t.Errorf("device 7: %v", err)
	}
}

// A line of a million columns costs a million steps, not their square, as a header as well as a row.
func TestMillionColumns(t *testing.T) {
	const n = 1_000_000
	commas := strings.Repeat(",", n-1)
	start := time.Now()
	_, err := Read(strings.NewReader(opsHeader+"\n"+commas+"\n"), "ops.csv", Options{})
	if err == nil || err.Error() != "profile: ops.csv: line 2, column 9: 1000000 fields, the header has 8" {
		t.Errorf("a row of a million fields: %v", err)
	}
	header := "OP CODE,OP TYPE" + strings.Repeat(",x", n-2) + "\n"
	p := read(t, header+"eager,signpost"+strings.Repeat(",", n-2)+"\nMatmul,"+strings.Repeat(",", n-2)+"\neager_end,signpost"+strings.Repeat(",", n-2)+"\n", Options{})
	if r := p.Report(ReportOptions{}); r.Eager.Ops != 1 || len(p.Columns) != 3 {
		t.Errorf("a header of a million columns: %d ops, %d names", r.Eager.Ops, len(p.Columns))
	}
	if _, err = Read(strings.NewReader(strings.Repeat(",", MaxColumns)), "ops.csv", Options{}); err == nil || err.Error() != "profile: ops.csv: line 1: 1048577 fields, at most 1048576 are read" {
		t.Errorf("too many columns: %v", err)
	}
	quoted := `"",` + strings.Repeat(",", MaxColumns)
	if _, err = Read(strings.NewReader(quoted), "ops.csv", Options{}); err == nil || err.Error() != "profile: ops.csv: line 1: more than 1048576 fields" {
		t.Errorf("too many columns with a quote: %v", err)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("took %v", d)
	}
}

// endless is a file that never ends, in one record.
type endless struct {
	head string
	fill byte
}

func (e *endless) Read(b []byte) (int, error) {
	if e.head != "" {
		n := copy(b, e.head)
		e.head = e.head[n:]
		return n, nil
	}
	for i := range b {
		b[i] = e.fill
	}
	return len(b), nil
}

func TestEndlessRecords(t *testing.T) {
	for _, c := range []struct {
		r   io.Reader
		err string
	}{
		{&endless{opsHeader + "\nA,\"", 'x'}, "line 2, column 2: the quote that opens this field never closes"},
		{&endless{opsHeader + "\n", 'x'}, "line 2: record longer than 67108864 bytes"},
	} {
		if _, err := Read(c.r, "ops.csv", Options{}); err == nil || err.Error() != "profile: ops.csv: "+c.err {
			t.Errorf("error %v, want %s", err, c.err)
		}
	}
}

// failing breaks off in the middle.
type failing struct{ r io.Reader }

func (f failing) Read(b []byte) (int, error) {
	n, err := f.r.Read(b)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func TestReadFailure(t *testing.T) {
	_, err := Read(failing{strings.NewReader(opsFile(opRow("A", 1)))}, "ops.csv", Options{})
	if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "ops.csv: line 3") {
		t.Errorf("error %v", err)
	}
}
