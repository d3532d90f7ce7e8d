package gguf

import (
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"

	"sluice/kernels"
)

// TestCorrupt lists files that are refused, each with the exact error. The comments name the kind of fault seen elsewhere.
func TestCorrupt(t *testing.T) {
	u64 := func(n uint64) *uint64 { return &n }
	f32, q4k := uint32(kernels.F32), uint32(kernels.Q4_K)
	be := binary.BigEndian.AppendUint32([]byte("GGUF"), 3)
	be = append(be, make([]byte, 16)...)
	many := newRaw()
	for i := range 5 { // each legal by itself, together beyond 2^64
		many.info(string(rune('a'+i)), f32, 0, 1<<60)
	}
	cases := []struct {
		name string
		file []byte
		want string // after "gguf: f: "
	}{
		{"empty", nil, `at 0x0: magic needs 4 bytes, 0 left in the file`},
		{"magic", []byte("ggml\x03\x00\x00\x00"), `at 0x0: magic "ggml", want "GGUF": not a GGUF file`},
		{"magic lower case", append([]byte("gguf"), newRaw().bytes()[4:]...), `at 0x0: magic "gguf", want "GGUF": not a GGUF file`},
		{"version 0", (&raw{version: 0, align: 32}).bytes(), `at 0x4: GGUF version 0 is not supported, want 2 or 3`},
		{"version 1", (&raw{version: 1, align: 32}).bytes(), `at 0x4: GGUF version 1 is not supported, want 2 or 3: convert the file again with a current tool`},
		{"version 4", (&raw{version: 4, align: 32}).bytes(), `at 0x4: GGUF version 4 is not supported, want 2 or 3`},
		{"big-endian", be, `at 0x4: big-endian file (version bytes 0x03000000, swapped 3) is not supported, want little-endian`},

		// counts multiplied with a record size before any comparison
		{"tensor count", (&raw{version: 3, align: 32, nTensors: u64(math.MaxUint64)}).bytes(),
			`at 0x8: tensor count 18446744073709551615 needs at least 33 bytes each, 8 left in the file`},
		{"tensor count near 2^63", (&raw{version: 3, align: 32, nTensors: u64(math.MaxUint64 / 33)}).bytes(),
			`at 0x8: tensor count 558992244657865200 needs at least 33 bytes each, 8 left in the file`},
		{"key count", (&raw{version: 3, align: 32, nKeys: u64(1 << 40)}).bytes(),
			`at 0x10: key count 1099511627776 needs at least 14 bytes each, 8 left in the file`},

		// lengths near 2^64 turned into negative ints
		{"key length", append((&raw{version: 3, align: 8, nKeys: u64(1)}).header(), append(le.AppendUint64(nil, math.MaxUint64-1), make([]byte, 24)...)...),
			`at 0x20: key 0: name needs 18446744073709551614 bytes, 24 left in the file`},
		{"string length", newRaw().key("k", String, le.AppendUint64(nil, math.MaxUint64)).bytes(),
			`at 0x2d: key 0 "k": string needs 18446744073709551615 bytes, 19 left in the file`},
		{"array count max", newRaw().arr("k", String, math.MaxUint64, nil).bytes(),
			`at 0x31: key 0 "k": array of 18446744073709551615 str needs at least 8 bytes each, 15 left in the file`},
		{"array count 0x40000000", newRaw().arr("k", Float32, 0x40000000, nil).header(),
			`at 0x31: key 0 "k": array of 1073741824 f32 needs at least 4 bytes each, 0 left in the file`},
		{"array count wraps", newRaw().arr("k", Float64, 1<<61+1, make([]byte, 8)).header(),
			`at 0x31: key 0 "k": array of 2305843009213693953 f64 needs at least 8 bytes each, 8 left in the file`},
		{"array of arrays count", newRaw().arr("k", Array, 1<<60, make([]byte, 40)).header(),
			`at 0x31: key 0 "k": array of 1152921504606846976 arr needs at least 12 bytes each, 40 left in the file`},
		{"string in array", newRaw().arr("k", String, 1, le.AppendUint64(nil, 1<<63)).header(),
			`at 0x39: key 0 "k": array string needs 9223372036854775808 bytes, 0 left in the file`},
		{"array depth", newRaw().key("k", Array, nested(6)).header(), `at 0x55: key 0 "k": arrays nested more than 4 deep`},

		{"value type", newRaw().key("k", 13, make([]byte, 8)).bytes(), `at 0x21: key 0 "k": unknown value type 13`},
		{"array element type", newRaw().arr("k", 77, 1, make([]byte, 8)).bytes(), `at 0x31: key 0 "k": unknown array element type 77`},
		{"bool", newRaw().key("k", Bool, []byte{2}).bytes(), `at 0x25: key 0 "k": bool is 2, want 0 or 1`},
		{"empty key", newRaw().u32("", 1).bytes(), `at 0x18: key 0: name of 0 bytes, want 1 to 65535`},
		{"long key", newRaw().u32(strings.Repeat("k", 65536), 1).bytes(), `at 0x18: key 0: name of 65536 bytes, want 1 to 65535`},
		{"duplicate key", newRaw().u32("k", 1).u32("j", 1).u32("k", 2).bytes(), `at 0x3a: key 2 "k": duplicate, also key 0`},

		{"alignment type", newRaw().key(keyAlignment, Int32, le.AppendUint32(nil, 32)).bytes(),
			`at 0x31: key "general.alignment": type i32, want u32`},
		{"alignment array", newRaw().arr(keyAlignment, Uint32, 1, make([]byte, 4)).bytes(),
			`at 0x31: key "general.alignment": type arr[u32,1], want u32`},
		{"alignment 0", newRaw().u32(keyAlignment, 0).bytes(), `at 0x31: key "general.alignment": 0 is not a power of two`},
		{"alignment 24", newRaw().u32(keyAlignment, 24).bytes(), `at 0x31: key "general.alignment": 24 is not a power of two`},
		{"alignment past the end", newRaw().u32(keyAlignment, 1<<31).f32("x", 8).bytes(),
			`at 0x5a: tensor data, aligned to 2147483648, starts past file size 0x80`},

		{"empty tensor name", newRaw().f32("", 8).bytes(), `at 0x18: tensor 0: name of 0 bytes, want 1 to 65535`},
		{"duplicate tensor", newRaw().f32("x", 8).f32("y", 8).f32("x", 8).bytes(),
			`at 0x5a: tensor 2 "x": duplicate name, also tensor 0 of f at 0x18`},
		{"no dimensions", newRaw().info("x", f32, 0).info("y", f32, 0, 8).bytes(), `at 0x21: tensor 0 "x": 0 dimensions, want 1 to 4`},
		{"five dimensions", newRaw().info("x", f32, 0, 1, 1, 1, 1, 1).bytes(), `at 0x21: tensor 0 "x": 5 dimensions, want 1 to 4`},
		{"huge dimension count", patch(newRaw().f32("x", 8).bytes(), 0x21, 0xff, 0xff, 0xff, 0xff),
			`at 0x21: tensor 0 "x": 4294967295 dimensions, want 1 to 4`},
		{"zero dimension", newRaw().info("x", f32, 0, 8, 0).bytes(), `at 0x18: tensor 0 "x": dimension 1 of [8 0] is 0`},

		// products that wrap to a small size
		{"dimension product", newRaw().info("token_embd.weight", f32, 0, 1<<42+1, 1<<22).bytes(),
			`at 0x18: tensor 0 "token_embd.weight": dimensions [4398046511105 4194304] have more than 2^63-1 elements`},
		{"byte product", newRaw().info("x", f32, 0, 1<<62+8).bytes(),
			`at 0x18: tensor 0 "x": F32 of dimensions [4611686018427387912] has more than 2^63-1 bytes`},
		{"dimension above 2^63", newRaw().info("x", f32, 0, 1<<63).bytes(),
			`at 0x18: tensor 0 "x": dimensions [9223372036854775808] have more than 2^63-1 elements`},
		{"block byte product", newRaw().info("x", uint32(kernels.F64), 0, 1<<61).bytes(),
			`at 0x18: tensor 0 "x": F64 of dimensions [2305843009213693952] has more than 2^63-1 bytes`},
		{"exabytes of blocks", newRaw().info("x", q4k, 0, 1<<32, 1<<30).bytes(),
			`at 0x18: tensor 0 "x": end 0x2400000000000060 past file size 0x60`},
		{"running total", many.bytes(), `at 0x18: tensor 0 "a": end 0x40000000000000c0 past file size 0xc0`},

		{"row and block", newRaw().info("x", q4k, 0, 128, 2).bytes(), `at 0x18: tensor 0 "x": row length 128 is not a multiple of the 256 of a Q4_K block`},
		{"tensor type", newRaw().info("x", 77, 0, 256).bytes(), `at 0x18: tensor 0 "x": unknown tensor type 77 (type(77))`},
		{"removed tensor type", newRaw().info("x", 31, 0, 256).bytes(), `at 0x18: tensor 0 "x": unknown tensor type 31 (type(31))`},
		{"offset alignment", newRaw().f32("x", 8).info("y", f32, 16, 4).bytes(),
			`at 0x52: tensor 1 "y": data offset 0x10 is not a multiple of the alignment 32`},
		{"offset past the end", newRaw().f32("x", 8).info("y", f32, 1<<20, 4).bytes(),
			`at 0x39: tensor 1 "y": end 0x100070 past file size 0x80`},
		{"offset near 2^63", newRaw().info("x", f32, math.MaxInt64&^31, 4).f32("y", 8).bytes(),
			`at 0x18: tensor 0 "x": end 0x8000000000000050 past file size 0x80`},
		{"offset near 2^64", newRaw().info("x", f32, math.MaxUint64&^31, 4).bytes(),
			`at 0x31: tensor 0 "x": data offset 0xffffffffffffffe0 past file size 0x40`},
		{"overlap", newRaw().f32("x", 16).info("y", f32, 32, 4).bytes(),
			`at 0x39: tensor 1 "y": data 0x80..0x90 overlaps tensor 0 "x" at 0x60..0xa0`},
		{"overlap, same place", newRaw().f32("x", 8).info("y", f32, 0, 8).bytes(),
			`at 0x39: tensor 1 "y": data 0x60..0x80 overlaps tensor 0 "x" at 0x60..0x80`},
		{"data cut", cut(newRaw().f32("x", 8).bytes(), 1), `at 0x18: tensor 0 "x": end 0x60 past file size 0x5f`},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			f, err := Parse("f", tc.file)
			if err == nil {
				t.Fatalf("no error, %d tensors; want %s", len(f.Tensors()), tc.want)
			}
			if got := err.Error(); got != "gguf: f: "+tc.want {
				t.Errorf("got  %s\nwant gguf: f: %s", got, tc.want)
			}
			if !errors.Is(err, ErrFormat) {
				t.Errorf("%v is not ErrFormat", err)
			}
		})
	}
}

func patch(b []byte, at int, with ...byte) []byte { copy(b[at:], with); return b }

func cut(b []byte, n int) []byte { return b[:len(b)-n] }

// nested returns the element type, the count and the elements of depth arrays, one in the other.
func nested(depth int) []byte {
	if depth == 1 {
		return append(le.AppendUint64(le.AppendUint32(nil, uint32(Uint8)), 1), 7)
	}
	return append(le.AppendUint64(le.AppendUint32(nil, uint32(Array)), 1), nested(depth-1)...)
}

func TestBigEndianHost(t *testing.T) {
	err := checkHost("f", false)
	if err == nil || !strings.Contains(err.Error(), "big-endian host") {
		t.Errorf("got %v", err)
	}
}

// use does with a file what callers do; it must not panic and must stay inside the file.
func use(t testing.TB, f *File) {
	t.Helper()
	for _, k := range f.Keys() {
		v, ok := f.Value(k)
		if !ok {
			t.Fatalf("key %q listed but absent", k)
		}
		_ = v.String()
		_, _ = f.Uint(k, 0)
		_, _ = f.Float(k, 0)
		_, _ = f.Bool(k, false)
		_, _ = f.String(k, "")
		_, _ = f.Strings(k)
		_, _ = f.Ints(k)
		_, _ = f.Floats(k)
		_, _ = f.Bools(k)
		_, _ = f.UintOrArray(k, 2)
	}
	for _, ts := range f.Tensors() {
		if int64(len(ts.Data())) != ts.Size {
			t.Fatalf("tensor %q: %d bytes, want %d", ts.Name, len(ts.Data()), ts.Size)
		}
	}
}

// allocated returns the bytes that fn takes from the heap.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// memoryBound is what parsing n bytes may take from the heap in all: the smallest key, of 14 bytes, costs an entry in a list
// and one in a map, both of which also grow by doubling.
func memoryBound(n int) uint64 { return 1<<13 + 48*uint64(n) }

func TestTruncated(t *testing.T) {
	whole := small().bytes()
	end := len(whole)
	for whole[end-1] == 0 { // padding after the last tensor may be missing
		end--
	}
	for n := range whole {
		var f *File
		var err error
		if got := allocated(func() { f, err = Parse("f", whole[:n:n]) }); got > memoryBound(n) {
			t.Errorf("%d bytes: %d bytes allocated, want at most %d", n, got, memoryBound(n))
		}
		if n < end && !errors.Is(err, ErrFormat) {
			t.Errorf("%d bytes of %d: got %v, want ErrFormat", n, len(whole), err)
		}
		if err == nil {
			use(t, f)
		}
	}
}

func TestBitFlips(t *testing.T) {
	r := small()
	whole := r.bytes()
	for bit := range len(r.header()) * 8 {
		b := append([]byte(nil), whole...)
		b[bit/8] ^= 1 << (bit % 8)
		var f *File
		var err error
		if got := allocated(func() { f, err = Parse("f", b) }); got > memoryBound(len(b)) {
			t.Errorf("bit %d: %d bytes allocated, want at most %d", bit, got, memoryBound(len(b)))
		}
		if err == nil {
			use(t, f)
		} else if !errors.Is(err, ErrFormat) {
			t.Errorf("bit %d: %v is not ErrFormat", bit, err)
		}
	}
}

// TestMemory holds the parser to its header where the file claims much or has as many of the smallest records as fit.
func TestMemory(t *testing.T) {
	u64 := func(n uint64) *uint64 { return &n }
	keys, tensors := newRaw(), newRaw()
	for i := range 20000 {
		name := string([]rune{rune('a' + i%25), rune(0x4e00 + i/25)})
		keys.key(name, Uint8, []byte{1})
		tensors.info(name, uint32(kernels.I8), uint64(i)*32, 1)
	}
	tensors.data = make([]byte, 20000*32)
	cases := []struct {
		name   string
		file   []byte
		header int
	}{
		{"huge array", newRaw().arr("k", Uint8, 1<<40, nil).bytes(), 64},
		{"huge string array", newRaw().arr("k", String, 1<<32-1, make([]byte, 64)).bytes(), 128},
		{"huge counts", (&raw{version: 3, align: 32, nTensors: u64(1 << 56), nKeys: u64(1 << 56)}).bytes(), 32},
		// a large file is no licence for the header to allocate: the count fits the file, the records are not there
		{"count by file size", append((&raw{version: 3, align: 32, nTensors: u64(100000)}).bytes(), make([]byte, 4<<20)...), 32},
		{"smallest keys", keys.bytes(), len(keys.header())},
		{"smallest tensors", tensors.bytes(), len(tensors.header())},
	}
	for _, tc := range cases {
		if got := allocated(func() { _, _ = Parse("f", tc.file) }); got > memoryBound(tc.header) {
			t.Errorf("%s: %d bytes allocated for a header of %d, want at most %d", tc.name, got, tc.header, memoryBound(tc.header))
		}
	}
}
