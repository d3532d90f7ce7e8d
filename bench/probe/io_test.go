package probe

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// ioFile is a file that direct reads work on; the test is skipped where there is none.
func ioFile(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weights")
	if err := os.WriteFile(path, bytes.Repeat([]byte("0123456789abcdef"), n/16), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := openDirect(path)
	if err != nil {
		t.Skipf("direct reads in the temporary folder: %v", err)
	}
	f.close()
	return path
}

func TestMeasureIO(t *testing.T) {
	path := ioFile(t, 3<<20+100)
	r, err := MeasureIO(t.Context(), IOConfig{Path: path, Blocks: []int64{4096, 1 << 20}, Lanes: []int{1, 3}, Bytes: 2 << 20, Repeat: 2})
	if err != nil {
		t.Fatal(err)
	}
	want := []IO{{Block: 4096, Lanes: 1, Bytes: 2 << 20}, {Block: 4096, Lanes: 3, Bytes: 2 << 20}, {Block: 1 << 20, Lanes: 1, Bytes: 2 << 20}, {Block: 1 << 20, Lanes: 3, Bytes: 3 << 20}}
	if len(r.Rows) != len(want) {
		t.Fatalf("%d rows, want %d", len(r.Rows), len(want))
	}
	for i, x := range r.Rows {
		if x.Block != want[i].Block || x.Lanes != want[i].Lanes || x.Bytes != want[i].Bytes || !(x.Min > 0) || x.Median < x.Min || x.Max < x.Median {
			t.Errorf("row %d: %+v, want %+v", i, x, want[i])
		}
		if b := r.Best(); b.Median < x.Median {
			t.Errorf("best %+v, row %+v", b, x)
		}
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"weights: 3 MiB, direct reads", "KiB a read  1 lanes", "\n1024  ", "\nbest: "} {
		if !strings.Contains(text.String(), s) {
			t.Errorf("text lacks %q:\n%s", s, &text)
		}
	}
	r, err = MeasureIO(t.Context(), IOConfig{Path: path, Blocks: []int64{4096}, Lanes: []int{1}, Repeat: 1})
	if err != nil || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "3 MiB a pass instead of 256") {
		t.Errorf("%+v, %v: want a note", r, err)
	}
}

func TestMeasureIORefuses(t *testing.T) {
	path := ioFile(t, 1<<20)
	for _, c := range []struct {
		want string
		cfg  IOConfig
	}{
		{"no such file", IOConfig{Path: filepath.Join(t.TempDir(), "none")}},
		{"no regular file", IOConfig{Path: t.TempDir()}},
		{"has 1048576 bytes, want 33554432", IOConfig{Path: path}},
		{"blocks of 5000 bytes", IOConfig{Path: path, Blocks: []int64{5000}}},
		{"blocks of 0 bytes", IOConfig{Path: path, Blocks: []int64{0}}},
		{"blocks of -4096 bytes", IOConfig{Path: path, Blocks: []int64{-4096}}},
		{"0 lanes", IOConfig{Path: path, Lanes: []int{0}}},
		{"0 numbers of lanes", IOConfig{Path: path, Lanes: []int{}}},
		{"-1 passes", IOConfig{Path: path, Repeat: -1}},
		{"-7 bytes to read", IOConfig{Path: path, Bytes: -7}},
	} {
		if _, err := MeasureIO(t.Context(), c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q in it", err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := MeasureIO(ctx, IOConfig{Path: path, Blocks: []int64{4096}}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestDirectRead reads what the file holds, whole blocks at any place, and says where the file ends.
func TestDirectRead(t *testing.T) {
	path := ioFile(t, 8*MinBlock)
	f, err := openDirect(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	mem, free, err := alignedMemory(2 * MinBlock)
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	if err := f.readAt(mem, 3*MinBlock); err != nil || !bytes.Equal(mem, bytes.Repeat([]byte("0123456789abcdef"), 2*MinBlock/16)) {
		t.Errorf("%v, %q", err, mem[:32])
	}
	if err := f.readAt(mem, 7*MinBlock); err == nil || !strings.Contains(err.Error(), "0x8000") {
		t.Errorf("past the end: %v", err)
	}
}
