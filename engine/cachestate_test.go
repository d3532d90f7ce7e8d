package engine

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"reflect"
	"strings"
	"testing"

	"sluice/moe/store"
)

func stateSample() ([32]byte, store.CacheState) {
	var model [32]byte
	for i := range model {
		model[i] = byte(i * 7)
	}
	return model, store.CacheState{NextUse: 1.25,
		Residents: []store.Resident{{Layer: 1, Expert: 2, Uses: 3, Score: 0.1}, {Layer: 0, Expert: 65535, Uses: 1<<32 - 1, Protected: true}, {Unused: true}},
		Gone:      []store.Resident{{Layer: 7, Expert: 9, Uses: 1, Score: 1e-300}}}
}

func TestCacheStateRoundTrip(t *testing.T) {
	model, st := stateSample()
	for _, want := range []store.CacheState{st, {Residents: st.Residents[1:], Gone: []store.Resident{}}, {Residents: []store.Resident{}, Gone: st.Gone, NextUse: 7}} {
		got, err := decodeState(encodeState(model, want))
		if err != nil || !reflect.DeepEqual(got.CacheState, want) || got.Model != model || got.Sum == 0 {
			t.Errorf("%v, %v, want %v", got, err, want)
		}
	}
}

// stateV1 is a file as the first version wrote it.
func stateV1(model [32]byte, list []store.Resident) []byte {
	le := binary.LittleEndian
	b := append(le.AppendUint32(le.AppendUint32([]byte(stateMagic), 1), 16), model[:]...)
	b = le.AppendUint32(b, uint32(len(list)))
	for _, r := range list {
		flags := uint32(0)
		if r.Protected {
			flags = 1
		}
		for _, v := range []uint32{uint32(r.Layer), uint32(r.Expert), r.Uses, flags} {
			b = le.AppendUint32(b, v)
		}
	}
	return le.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

func TestCacheStateVersion1(t *testing.T) {
	model, _ := stateSample()
	list := []store.Resident{{Layer: 1, Expert: 2, Uses: 3}, {Expert: 65535, Uses: 1<<32 - 1, Protected: true}}
	f, err := decodeState(stateV1(model, list))
	if err != nil || !reflect.DeepEqual(f.Residents, list) || len(f.Gone) != 0 || f.NextUse != 0 || f.Model != model {
		t.Errorf("%+v, %v, want %v", f, err, list)
	}
	b := stateV1(model, list)
	binary.LittleEndian.PutUint32(b[stateHeadV1+12:], stateUnused) // a flag that version had not
	binary.LittleEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], crc32.MakeTable(crc32.Castagnoli)))
	if _, err := decodeState(b); !errors.Is(err, ErrStateCorrupt) || !strings.Contains(err.Error(), "flags 0x2") {
		t.Errorf("unknown flag: %v", err)
	}
}

// TestCacheStateRefuses: every bit and every length that is not what was written is refused by name.
func TestCacheStateRefuses(t *testing.T) {
	model, st := stateSample()
	for _, good := range [][]byte{encodeState(model, st), stateV1(model, st.Residents[:1])} {
		for n := range good {
			if _, err := decodeState(good[:n]); !errors.Is(err, ErrStateCorrupt) {
				t.Errorf("cut to %d bytes: %v", n, err)
			}
		}
		if _, err := decodeState(append(good[:len(good):len(good)], 0)); !errors.Is(err, ErrStateCorrupt) {
			t.Errorf("a byte more: %v", err)
		}
		for i := range len(good) * 8 {
			b := append([]byte(nil), good...)
			b[i/8] ^= 1 << (i % 8)
			if _, err := decodeState(b); !errors.Is(err, ErrStateCorrupt) && !errors.Is(err, ErrStateVersion) {
				t.Errorf("bit %d changed: %v", i, err)
			}
		}
	}
}

func FuzzCacheState(f *testing.F) {
	model, st := stateSample()
	f.Add(encodeState(model, st))
	f.Add(encodeState(model, store.CacheState{}))
	f.Add(stateV1(model, st.Residents[:1]))
	f.Add([]byte(stateMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := decodeState(data)
		if err != nil {
			return
		}
		again := encodeState(got.Model, got.CacheState)
		if data[len(stateMagic)] == 1 {
			again = stateV1(got.Model, got.Residents)
		}
		if string(again) != string(data) {
			t.Errorf("decodes to what encodes to other bytes: %x, %x", data, again)
		}
	})
}
