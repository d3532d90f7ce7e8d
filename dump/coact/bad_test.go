package coact

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"sluice/dump/dumptest"
)

func TestBadInput(t *testing.T) {
	rec := appendRecord(nil, 1, []int{1, 2})
	o := Options{Experts: 8, Cards: 2, Replicate: []int{0}, NLayer: 4}
	for _, c := range []struct {
		name  string
		data  []byte
		o     func(*Options)
		texts []string
	}{
		{"empty", nil, nil, []string{"coact: empty: no records"}},
		{"torn in the first record", rec[:5], nil, []string{"no whole record", "0 whole records, torn at byte 0"}},
		{"text", []byte("turn,phase,step\n" + strings.Repeat("0,1,2\n", 400)), func(o *Options) { o.NLayer = 0 },
			[]string{"record 0 at byte 0: layer 116", "expert 28274, want 0..7", "not a memra-moe-sel-v1 file"}},
		{"mixed top-k", appendRecord(rec, 1, []int{1, 2, 3}), nil, []string{"record 1 at byte 14: layer 1", "3 experts for this token, 2 for the 1 before it"}},
		{"expert", appendRecord(rec, 1, []int{8, 2}), nil, []string{"record 1 at byte 14: layer 1: slot 0: expert 8, want 0..7"}},
		{"padding", appendRecord(rec, 1, []int{3, 65535}), nil, []string{"slot 1: expert 65535, want 0..7"}},
		{"twice", appendRecord(rec, 1, []int{3, 3}), nil, []string{"slot 1: expert 3 a second time"}},
		{"layer", appendRecord(rec, 4, []int{1, 2}), nil, []string{"record 1 at byte 14: layer 4: the model has layers 0..3"}},
		{"n_sel 0", append(rec, 0, 0), nil, []string{"record 1 at byte 14: n_sel 0"}},
		{"layer not there", rec, func(o *Options) { o.Layers = []int{2} }, []string{"layer 2 has no records (have layers [1])"}},
		{"too many experts", rec, func(o *Options) { o.Experts = 1 << 16 }, []string{"need 32768 MiB, at most 320"}},
	} {
		o := o
		if c.o != nil {
			c.o(&o)
		}
		_, err := Analyse(context.Background(), bytes.NewReader(c.data), o)
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		wantErr(t, err, c.texts...)
	}
}

func TestTornDump(t *testing.T) {
	r := analyse(t, dumptest.Read(t, "truncated-288.sel.bin"), options288)
	if r.Records != 1000 || len(r.Notes) == 0 || r.Notes[0] != "torn tail: 1000 whole records used, torn at byte 50000" {
		t.Errorf("%d records, notes %q", r.Records, r.Notes)
	}
}

func TestUnevenLayersAreNoted(t *testing.T) {
	data := append(randomDump(1, 2, 200, 8, 2), appendRecord(nil, 0, []int{1, 2})...)
	data = append(data, appendRecord(nil, 9, []int{1, 2, 3})...)
	r := analyse(t, data, Options{Experts: 8, Cards: 2, Replicate: []int{0}})
	notes := strings.Join(r.Notes, "\n")
	for _, want := range []string{"layer 9 has 1, layer 0 has 201", "top-k differs between layers: [2 3]", "layer 9 has 1 tokens"} {
		if !strings.Contains(notes, want) {
			t.Errorf("notes %q lack %q", notes, want)
		}
	}
	r = analyse(t, data, Options{Experts: 8, Cards: 2, Replicate: []int{0}, Layers: []int{3}})
	if len(r.Notes) != 0 || len(r.Layers) != 1 || r.Layers[0].Layer != 3 {
		t.Errorf("one layer: %+v", r.Notes)
	}
}

func TestOptions(t *testing.T) {
	good := Options{Experts: 8, Cards: 2, Replicate: []int{0}}
	must(t, good.Validate())
	for text, set := range map[string]func(*Options){
		"0 experts":            func(o *Options) { o.Experts = 0 },
		"65537 experts":        func(o *Options) { o.Experts = 65537 },
		"1 cards, want 2..16":  func(o *Options) { o.Cards = 1 },
		"17 cards":             func(o *Options) { o.Cards = 17 },
		"9 cards for 8":        func(o *Options) { o.Cards = 9 },
		"no replication":       func(o *Options) { o.Replicate = nil },
		"replicate -1":         func(o *Options) { o.Replicate = []int{-1} },
		"replicate 9":          func(o *Options) { o.Replicate = []int{0, 9} },
		"replicate 2 twice":    func(o *Options) { o.Replicate = []int{2, 2} },
		"layer 256":            func(o *Options) { o.Layers = []int{256} },
		"layer 3 twice":        func(o *Options) { o.Layers = []int{3, 3} },
		"-1 layers, want 0 or": func(o *Options) { o.NLayer = -1 },
		"-1 threads":           func(o *Options) { o.Threads = -1 },
	} {
		o := good
		set(&o)
		wantErr(t, o.Validate(), text)
		if _, err := Analyse(context.Background(), bytes.NewReader(nil), o); err == nil {
			t.Error("analysed with", text)
		}
	}
}

func TestPipeIsRefused(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	_, err = Analyse(context.Background(), r, Options{Experts: 8, Cards: 2, Replicate: []int{0}})
	wantErr(t, err, "cannot be rewound")
}

// shrinking loses its end after the first pass.
type shrinking struct {
	*bytes.Reader
	data  []byte
	seeks int
}

func (s *shrinking) Seek(off int64, whence int) (int64, error) {
	if s.seeks++; s.seeks == 2 {
		s.Reader = bytes.NewReader(s.data)
	}
	return s.Reader.Seek(off, whence)
}

func TestChangedDump(t *testing.T) {
	rec := appendRecord(nil, 1, []int{1, 2})
	for name, after := range map[string][]byte{
		"shorter": rec, "wider": appendRecord(rec, 1, []int{1, 2, 3}), "expert": appendRecord(rec, 1, []int{1, 9}), "layer": appendRecord(rec, 2, []int{1, 2}),
	} {
		in := &shrinking{Reader: bytes.NewReader(appendRecord(rec, 1, []int{3, 4})), data: after}
		_, err := Analyse(context.Background(), in, Options{Experts: 8, Cards: 2, Replicate: []int{0}})
		if !errors.Is(err, errChanged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What is appended meanwhile is left alone.
	in := &shrinking{Reader: bytes.NewReader(rec), data: appendRecord(rec, 1, []int{1, 2, 3})}
	r, err := Analyse(context.Background(), in, Options{Experts: 8, Cards: 2, Replicate: []int{0}})
	if err != nil || r.Records != 1 {
		t.Error(err)
	}
}

func TestReadPlacementRefuses(t *testing.T) {
	r := analyse(t, randomDump(1, 2, 50, 6, 2), Options{Experts: 6, Cards: 2, Replicate: []int{2}})
	var b bytes.Buffer
	must(t, r.Placement.Write(&b))
	good := b.String()
	for _, c := range []struct{ old, new, want string }{
		{"", "", ""},
		{good, "", "unexpected end"},
		{good, "[]", "cannot unmarshal"},
		{"sluice-placement-v1", "sluice-placement-v2", `format "sluice-placement-v2", want "sluice-placement-v1"`},
		{`"cards": 2`, `"cards": 17`, "cards 17, want 1..16"},
		{`"cards": 2`, `"cards": 3`, "want one or all 3"},
		{`"n_expert": 6`, `"n_expert": 7`, "layer 0: 6 experts, want 7"},
		{`"n_expert": 6`, `"n_expert": 0`, "n_expert 0"},
		{`"replicate": 2`, `"replicate": 3`, "2 experts on every card, want 3"},
		{`"layer":3`, `"layer":0`, "layer 0 after layer 0"},
		{`"layer":3`, `"layer":300`, "ascending up to 255"},
		{`[0,1]`, `[1,0]`, "cards [1 0]"},
		{`[0,1]`, `[0,2]`, "cards [0 2]"},
		{`[0,1]`, `[]`, "on 0 cards"},
		{good[strings.Index(good, `"layers"`):], `"layers": []}`, "no layers"},
	} {
		_, err := ReadPlacement(strings.NewReader(strings.Replace(good, c.old, c.new, 1)))
		if c.want == "" {
			must(t, err)
			continue
		}
		wantErr(t, err, "coact: placement: ", c.want)
	}
	_, err := ReadPlacement(io.LimitReader(zeros{}, MaxPlacementBytes+1))
	wantErr(t, err, "longer than")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
