package store

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLayoutValidate(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(l *Layout)
		want string
	}{
		{"good", func(l *Layout) {}, ""},
		{"no projection absent everywhere", func(l *Layout) {
			for e := range l.Experts[1] {
				l.Experts[1][e].Gate.Len = 0
			}
		}, ""},
		{"no files", func(l *Layout) { l.Files = nil }, "layer 1 expert 0: gate in file 1 of 0"},
		{"all dense", func(l *Layout) { l.Experts = make([][]ExpertExtents, 3) }, "layout of 3 layers has no experts"},
		{"expert absent", func(l *Layout) { l.Experts[1][2] = ExpertExtents{} }, "layer 1 expert 2: absent"},
		{"projection of one expert absent", func(l *Layout) { l.Experts[1][2].Up.Len = 0 }, "layer 1 expert 2: up has 0 bytes"},
		{"negative file", func(l *Layout) { l.Experts[1][2].Up.File = -1 }, "layer 1 expert 2: up in file -1 of 2"},
		{"file out of range", func(l *Layout) { l.Experts[1][2].Up.File = 2 }, "layer 1 expert 2: up in file 2 of 2"},
		{"negative length", func(l *Layout) { l.Experts[1][0].Up.Len = -1 }, "layer 1 expert 0: up: -1 bytes"},
		{"negative offset", func(l *Layout) { l.Experts[1][3].Down.Off = -4096 }, "layer 1 expert 3: down: 3288 bytes at offset -0x1000"},
		{"end one past the file", func(l *Layout) {
			x := &l.Experts[1][3].Down
			x.Off = int64(len(l.Files[x.File].Map)) - x.Len + 1
		}, "outside model-1.gguf of 0x"},
		{"offset and length wrap", func(l *Layout) { l.Experts[1][3].Down.Off = math.MaxInt64 - 8 }, "layer 1 expert 3: down: 3288 bytes at offset 0x7ffffffffffffff7 outside"},
		{"length wraps", func(l *Layout) { l.Experts[1][3].Down.Len = math.MaxInt64 }, "layer 1 expert 3: down: 9223372036854775807 bytes"},
		{"size unknown", func(l *Layout) { l.Files[1] = File{Name: "pipe"} }, "size of pipe: neither a mapping nor a path"},
		{"file gone", func(l *Layout) { l.Files[1].Map = nil; l.Files[1].Path += ".gone" }, "no such file"},
		{"absurd size", func(l *Layout) { l.Files[1].Map = nil; l.Files[1].ReaderAt = sizedReader(1 << 60) }, "model-1.gguf: size 1152921504606846976 outside"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := testModel(t, 3, 4)
			tc.edit(l)
			err := l.Validate()
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// sizedReader claims a size and has nothing.
type sizedReader int64

func (r sizedReader) Size() int64                       { return int64(r) }
func (r sizedReader) ReadAt([]byte, int64) (int, error) { return 0, os.ErrInvalid }

func TestFileSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, make([]byte, 123), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, file := range map[string]File{
		"map": {Map: make([]byte, 123)}, "reader": {ReaderAt: bytes.NewReader(make([]byte, 123))},
		"file": {ReaderAt: f}, "path": {Path: path},
	} {
		if n, err := file.size(); n != 123 || err != nil {
			t.Errorf("%s: got %d, %v", name, n, err)
		}
	}
}

func TestSlotShape(t *testing.T) {
	experts := []ExpertExtents{
		{Gate: Extent{Off: 4096, Len: 4096}, Down: Extent{Off: 8192, Len: 1}},
		{Gate: Extent{Off: 4095, Len: 4098}, Down: Extent{Off: 12288 - 1, Len: 1}}, // straddles three blocks
	}
	s := newSlotShape(experts, 4096)
	if s.offset != [4]int64{0, 12288, 12288, 16384} || s.bytes != 16384 {
		t.Errorf("got %+v", s)
	}
	if s := newSlotShape(experts, 1<<16); s.bytes != 1<<16 {
		t.Errorf("64 KiB pages: got %d", s.bytes)
	}
	l := &Layout{Experts: [][]ExpertExtents{nil, experts, experts[:1]}}
	for _, tc := range []struct {
		nUsed int
		want  int64
	}{{-1, 0}, {0, 0}, {1, 16384 + 8192}, {2, 2*16384 + 8192}, {9, 2*16384 + 8192}} {
		if got := workingSet(l, tc.nUsed, 4096); got != tc.want {
			t.Errorf("working set of %d: got %d, want %d", tc.nUsed, got, tc.want)
		}
	}
	if got := l.ExpertBytes(1); got != 4099 {
		t.Errorf("expert bytes: got %d", got)
	}
	if got := l.ExpertBytes(0); got != 0 {
		t.Errorf("expert bytes of a dense layer: got %d", got)
	}
}
