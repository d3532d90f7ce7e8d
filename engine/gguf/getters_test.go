package gguf

import (
	"math"
	"reflect"
	"strings"
	"testing"
)

// getterFile has one key of each type.
func getterFile(t testing.TB) *File {
	t.Helper()
	r := newRaw()
	r.key("u8", Uint8, []byte{200})
	r.key("i8", Int8, []byte{0xfe})
	r.key("u16", Uint16, []byte{1, 2})
	r.key("i16", Int16, []byte{0, 0x80})
	r.u32("u32", math.MaxUint32)
	r.key("i32", Int32, le.AppendUint32(nil, 7))
	r.key("u64", Uint64, le.AppendUint64(nil, math.MaxUint64))
	r.key("i64", Int64, le.AppendUint64(nil, 1<<62))
	r.key("f32", Float32, le.AppendUint32(nil, math.Float32bits(0.5)))
	r.key("f64", Float64, le.AppendUint64(nil, math.Float64bits(0.1)))
	r.key("bool", Bool, []byte{1})
	r.key("str", String, str("a\xffb"))
	r.arr("strs", String, 3, append(append(str("x"), str("")...), str("yz")...))
	r.arr("i8s", Int8, 3, []byte{1, 0xff, 3})
	r.arr("u8s", Uint8, 2, []byte{1, 0xff})
	r.arr("u32s", Uint32, 2, []byte{1, 0, 0, 0, 2, 0, 0, 0})
	r.arr("u64s", Uint64, 1, le.AppendUint64(nil, 1<<63))
	r.arr("f32s", Float32, 2, []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0})
	r.arr("f64s", Float64, 1, le.AppendUint64(nil, math.Float64bits(0.1)))
	r.arr("bools", Bool, 3, []byte{1, 0, 1})
	r.arr("none", String, 0, nil)
	r.arr("long", Uint8, 20, make([]byte, 20))
	r.arr("deep", Array, 1, nested(1))
	f, err := Parse("f", r.bytes())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestGetters(t *testing.T) {
	f := getterFile(t)
	call := func(v any, err error) []any { return []any{v, err} }
	cases := []struct {
		name string
		got  []any
		want any    // value without an error
		err  string // part of the error
	}{
		{"u8", call(f.Uint("u8", 1)), uint64(200), ""},
		{"u16", call(f.Uint("u16", 1)), uint64(0x201), ""},
		{"u32", call(f.NeedUint("u32")), uint64(math.MaxUint32), ""},
		{"i32", call(f.NeedUint("i32")), uint64(7), ""},
		{"u64", call(f.Uint("u64", 1)), uint64(math.MaxUint64), ""},
		{"i64", call(f.Uint("i64", 1)), uint64(1 << 62), ""},
		{"absent uint", call(f.Uint("no", 9)), uint64(9), ""},
		{"negative i8", call(f.Uint("i8", 1)), nil, `key "i8": -2, want 0 or more`},
		{"negative i16", call(f.Uint("i16", 1)), nil, `key "i16": -32768, want 0 or more`},
		{"uint of float", call(f.Uint("f32", 1)), nil, `key "f32": type f32, want an integer`},
		{"uint of bool", call(f.Uint("bool", 1)), nil, `key "bool": type bool, want an integer`},
		{"uint of array", call(f.Uint("u32s", 1)), nil, `key "u32s": type arr[u32,2], want an integer`},
		{"need uint", call(f.NeedUint("no")), nil, `gguf: f: key "no" is missing`},
		{"f32", call(f.Float("f32", 1)), 0.5, ""},
		{"f64", call(f.NeedFloat("f64")), 0.1, ""},
		{"absent float", call(f.Float("no", 2.5)), 2.5, ""},
		{"float of uint", call(f.Float("u32", 1)), nil, `key "u32": type u32, want f32 or f64`},
		{"need float", call(f.NeedFloat("no")), nil, `key "no" is missing`},
		{"bool", call(f.Bool("bool", false)), true, ""},
		{"absent bool", call(f.Bool("no", true)), true, ""},
		{"bool of u8", call(f.Bool("u8", true)), nil, `key "u8": type u8, want bool`},
		{"str", call(f.String("str", "")), "a\xffb", ""},
		{"absent str", call(f.String("no", "d")), "d", ""},
		{"need str", call(f.NeedString("str")), "a\xffb", ""},
		{"need absent str", call(f.NeedString("no")), nil, `key "no" is missing`},
		{"str of array", call(f.String("strs", "")), nil, `key "strs": type arr[str,3], want str`},
		{"strs", call(f.Strings("strs")), []string{"x", "", "yz"}, ""},
		{"empty strs", call(f.Strings("none")), []string{}, ""},
		{"absent strs", call(f.Strings("no")), []string(nil), ""},
		{"strs of str", call(f.Strings("str")), nil, `key "str": type str, want arr[str]`},
		{"strs of bytes", call(f.Strings("u8s")), nil, `key "u8s": type arr[u8,2], want arr[str]`},
		{"i8s", call(f.Ints("i8s")), []int64{1, -1, 3}, ""},
		{"u8s", call(f.Ints("u8s")), []int64{1, 255}, ""},
		{"absent ints", call(f.Ints("no")), []int64(nil), ""},
		{"u64s too large", call(f.Ints("u64s")), nil, `key "u64s": element 0 is 9223372036854775808, want at most 2^63-1`},
		{"ints of floats", call(f.Ints("f32s")), nil, `key "f32s": type arr[f32,2], want an array of integers`},
		{"ints of int", call(f.Ints("u32")), nil, `key "u32": type u32, want an array of integers`},
		{"f32s", call(f.Floats("f32s")), []float32{1, -2}, ""},
		{"f64s", call(f.Floats("f64s")), []float32{0.1}, ""},
		// scores declared as bytes: as many elements, a quarter of the memory
		{"floats of bytes", call(f.Floats("u8s")), nil, `key "u8s": type arr[u8,2], want arr[f32] or arr[f64]`},
		{"bools", call(f.Bools("bools")), []bool{true, false, true}, ""},
		{"bools of bytes", call(f.Bools("u8s")), nil, `key "u8s": type arr[u8,2], want arr[bool]`},
		{"per layer scalar", call(f.UintOrArray("u8", 3)), []uint64{200, 200, 200}, ""},
		{"per layer array", call(f.UintOrArray("u32s", 2)), []uint64{1, 2}, ""},
		{"per layer absent", call(f.UintOrArray("no", 2)), []uint64(nil), ""},
		{"per layer length", call(f.UintOrArray("u32s", 3)), nil, `key "u32s": 2 elements, want 3`},
		{"per layer negative", call(f.UintOrArray("i8s", 3)), nil, `key "i8s": element 1 is -1, want 0 or more`},
		{"per layer type", call(f.UintOrArray("f32s", 2)), nil, `key "f32s": type arr[f32,2], want an integer or an array of integers`},
		{"per layer nested", call(f.UintOrArray("deep", 1)), nil, `key "deep": type arr[arr,1], want`},
		{"too many layers", call(f.UintOrArray("u8", 1<<30)), nil, `key "u8": wanted for 1073741824 layers, limit 65536`},
	}
	for _, tc := range cases {
		err, _ := tc.got[1].(error)
		switch {
		case tc.err == "" && err != nil:
			t.Errorf("%s: %v", tc.name, err)
		case tc.err == "" && !reflect.DeepEqual(tc.got[0], tc.want):
			t.Errorf("%s: got %#v, want %#v", tc.name, tc.got[0], tc.want)
		case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
			t.Errorf("%s: got %v, want an error with %s", tc.name, err, tc.err)
		}
	}
}

func TestValueString(t *testing.T) {
	f := getterFile(t)
	for key, want := range map[string]string{
		"i16": "-32768", "u64": "18446744073709551615", "f32": "0.5", "f64": "0.1", "bool": "true", "str": `"a\xffb"`,
		"strs": `arr[str,3]{"x", "", "yz"}`, "f32s": "arr[f32,2]{1, -2}", "bools": "arr[bool,3]{true, false, true}",
		"none": "arr[str,0]{}", "long": "arr[u8,20]{0, 0, 0, 0, 0, 0, 0, 0, ...}", "deep": "arr[arr,1]{...}",
	} {
		if v, _ := f.Value(key); v.String() != want {
			t.Errorf("%s: got %s, want %s", key, v, want)
		}
	}
	if v, _ := f.Value("strs"); v.Len() != 3 || v.Elem != String {
		t.Errorf("strs: %d of %s", v.Len(), v.Elem)
	}
	if got := ValueType(77).String(); got != "type(77)" {
		t.Errorf("got %s", got)
	}
}

func TestClosed(t *testing.T) {
	f, err := Open(writeTemp(t, t.TempDir(), "m.gguf", small().bytes()))
	if err != nil {
		t.Fatal(err)
	}
	ts, _ := f.Tensor("output.weight")
	if len(ts.Data()) != 64 {
		t.Fatalf("%d bytes", len(ts.Data()))
	}
	for range 2 {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if ts.Data() != nil {
		t.Error("data after Close")
	}
	if _, err := f.Strings("tokenizer.ggml.tokens"); err == nil || !strings.Contains(err.Error(), "file is closed") {
		t.Errorf("got %v", err)
	}
	if _, ok := f.Value("general.architecture"); ok {
		t.Error("value after Close")
	}
	if err := f.Verify(nil); err == nil {
		t.Error("Verify after Close")
	}
}

// TestLargeVocabulary keeps arrays of strings from costing one allocation per string.
func TestLargeVocabulary(t *testing.T) {
	const n = 150000
	var elems []byte
	for i := range n {
		elems = append(elems, str(strings.Repeat("x", i%13))...)
	}
	data := newRaw().arr("tokenizer.ggml.tokens", String, n, elems).bytes()
	var f *File
	if got := testing.AllocsPerRun(3, func() { f, _ = Parse("f", data) }); got > 40 {
		t.Errorf("Parse: %v allocations", got)
	}
	var toks []string
	if got := testing.AllocsPerRun(3, func() { toks, _ = f.Strings("tokenizer.ggml.tokens") }); got > 2 {
		t.Errorf("Strings: %v allocations, want 2", got)
	}
	if len(toks) != n || toks[n-1] != strings.Repeat("x", (n-1)%13) {
		t.Errorf("%d strings, last %q", len(toks), toks[len(toks)-1])
	}
}
