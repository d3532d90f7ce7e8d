package engine

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sluice/moe"
)

func stateSample() ([32]byte, []moe.Resident) {
	var model [32]byte
	for i := range model {
		model[i] = byte(i * 7)
	}
	return model, []moe.Resident{{Layer: 1, Expert: 2, Uses: 3}, {Layer: 0, Expert: 65535, Uses: 1<<32 - 1, Protected: true}, {}}
}

func TestCacheStateRoundTrip(t *testing.T) {
	model, list := stateSample()
	for _, l := range [][]moe.Resident{list, {}} {
		got, err := decodeState(encodeState(model, l), model)
		if err != nil || !reflect.DeepEqual(got, l) {
			t.Errorf("%v, %v, want %v", got, err, l)
		}
	}
}

// TestCacheStateRefuses: every bit and every length that is not what was written is refused by name.
func TestCacheStateRefuses(t *testing.T) {
	model, list := stateSample()
	good := encodeState(model, list)
	for n := range good {
		if _, err := decodeState(good[:n], model); !errors.Is(err, ErrStateCorrupt) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	if _, err := decodeState(append(good[:len(good):len(good)], 0), model); !errors.Is(err, ErrStateCorrupt) {
		t.Errorf("a byte more: %v", err)
	}
	for i := range len(good) * 8 {
		b := append([]byte(nil), good...)
		b[i/8] ^= 1 << (i % 8)
		if _, err := decodeState(b, model); !errors.Is(err, ErrStateCorrupt) && !errors.Is(err, ErrStateVersion) {
			t.Errorf("bit %d changed: %v", i, err)
		}
	}
	other := model
	other[0]++
	if _, err := decodeState(good, other); !errors.Is(err, ErrStateModel) || !strings.Contains(err.Error(), "tensor table 00070e15") {
		t.Errorf("another model: %v", err)
	}
}

func TestWriteBeside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	for _, text := range []string{"one", "two"} {
		if err := writeBeside(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%q, %v", got, err)
		}
	}
	if err := writeBeside(filepath.Join(dir, "no", "such"), nil); err == nil {
		t.Error("a folder that is not there: no error")
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeBeside(filepath.Join(dir, "folder"), []byte("x")); err == nil {
		t.Error("over a folder: no error")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func FuzzCacheState(f *testing.F) {
	model, list := stateSample()
	f.Add(encodeState(model, list))
	f.Add(encodeState(model, nil))
	f.Add([]byte(stateMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := decodeState(data, model)
		if err != nil {
			return
		}
		if again := encodeState(model, got); string(again) != string(data) {
			t.Errorf("decodes to what encodes to other bytes: %x, %x", data, again)
		}
	})
}
