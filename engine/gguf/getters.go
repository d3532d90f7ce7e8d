package gguf

import "math"

// maxBroadcast bounds the n of UintOrArray, which counts layers; a file may claim any number of them.
const maxBroadcast = 1 << 16

// Keys returns the metadata keys in file order.
func (f *File) Keys() []string {
	keys := make([]string, len(f.kvs))
	for i := range f.kvs {
		keys[i] = f.kvs[i].key
	}
	return keys
}

// Value returns the value of a key as a view into the file; false when the key is absent or the File is closed.
func (f *File) Value(key string) (Value, bool) {
	i, ok := f.index[key]
	if !ok || f.closed {
		return Value{}, false
	}
	return f.kvs[i].val, true
}

// lookup is Value with an error for a closed File, whose metadata is not absent but gone.
func (f *File) lookup(key string) (Value, bool, error) {
	if f.closed {
		return Value{}, false, formatErr(f.name, -1, "key %q: file is closed", key)
	}
	v, ok := f.Value(key)
	return v, ok, nil
}

// need is lookup with an error for an absent key.
func (f *File) need(key string) (Value, error) {
	v, ok, err := f.lookup(key)
	if err == nil && !ok {
		err = formatErr(f.name, -1, "key %q is missing", key)
	}
	return v, err
}

func typeErr(file, key string, v Value, want string) error {
	return formatErr(file, v.pos, "key %q: type %s, want %s", key, v.kind(), want)
}

func uintOf(file, key string, v Value) (uint64, error) {
	u, neg, ok := integer(v.Type, v.raw)
	if !ok {
		return 0, typeErr(file, key, v, "an integer")
	}
	if neg {
		return 0, formatErr(file, v.pos, "key %q: %d, want 0 or more", key, int64(u))
	}
	return u, nil
}

func floatOf(file, key string, v Value) (float64, error) {
	x, ok := float(v.Type, v.raw)
	if !ok {
		return 0, typeErr(file, key, v, "f32 or f64")
	}
	return x, nil
}

func stringOf(file, key string, v Value) (string, error) {
	if v.Type != String {
		return "", typeErr(file, key, v, "str")
	}
	return string(v.raw), nil
}

// Uint returns an integer of any width, def when the key is absent, an error when it is negative or no integer.
func (f *File) Uint(key string, def uint64) (uint64, error) {
	v, ok, err := f.lookup(key)
	if err != nil || !ok {
		return def, err
	}
	return uintOf(f.name, key, v)
}

// NeedUint is Uint with an error that names the key when it is absent.
func (f *File) NeedUint(key string) (uint64, error) {
	v, err := f.need(key)
	if err != nil {
		return 0, err
	}
	return uintOf(f.name, key, v)
}

// Float returns an f32 or f64, def when the key is absent, an error when it has another type.
func (f *File) Float(key string, def float64) (float64, error) {
	v, ok, err := f.lookup(key)
	if err != nil || !ok {
		return def, err
	}
	return floatOf(f.name, key, v)
}

// NeedFloat is Float with an error that names the key when it is absent.
func (f *File) NeedFloat(key string) (float64, error) {
	v, err := f.need(key)
	if err != nil {
		return 0, err
	}
	return floatOf(f.name, key, v)
}

// Bool returns a bool, def when the key is absent, an error when it has another type.
func (f *File) Bool(key string, def bool) (bool, error) {
	v, ok, err := f.lookup(key)
	if err != nil || !ok {
		return def, err
	}
	if v.Type != Bool {
		return false, typeErr(f.name, key, v, "bool")
	}
	return v.raw[0] != 0, nil
}

// String returns a string, def when the key is absent, an error when it has another type. The bytes are as in the file, not
// checked to be UTF-8.
func (f *File) String(key, def string) (string, error) {
	v, ok, err := f.lookup(key)
	if err != nil || !ok {
		return def, err
	}
	return stringOf(f.name, key, v)
}

// NeedString is String with an error that names the key when it is absent.
func (f *File) NeedString(key string) (string, error) {
	v, err := f.need(key)
	if err != nil {
		return "", err
	}
	return stringOf(f.name, key, v)
}

// Strings returns an array of strings, nil when the key is absent. The strings share one copy of the array's bytes.
func (f *File) Strings(key string) ([]string, error) {
	v, ok, err := f.lookup(key)
	if err != nil || !ok {
		return nil, err
	}
	if v.Type != Array || v.Elem != String {
		return nil, typeErr(f.name, key, v, "arr[str]")
	}
	all := string(v.raw)
	out := make([]string, v.n)
	rest := v.raw
	for i := range out {
		s, r, ok := nextString(rest)
		if !ok {
			return nil, formatErr(f.name, v.pos, "key %q: element %d changed while the file was open", key, i)
		}
		end := len(all) - len(r)
		out[i], rest = all[end-len(s):end], r
	}
	return out, nil
}

// array returns the array at key and its element size; n is 0 when the key is absent. ok says which element types will do.
func (f *File) array(key, want string, ok func(ValueType) bool) (v Value, size int, err error) {
	v, has, err := f.lookup(key)
	if err != nil || !has {
		return Value{}, 0, err
	}
	if v.Type != Array || !ok(v.Elem) {
		return Value{}, 0, typeErr(f.name, key, v, want)
	}
	return v, int(v.Elem.size()), nil
}

func isInteger(t ValueType) bool {
	switch t {
	case Uint8, Int8, Uint16, Int16, Uint32, Int32, Uint64, Int64:
		return true
	}
	return false
}

// Ints returns an array of integers of any width, nil when the key is absent. A u64 above 2^63-1 is an error.
func (f *File) Ints(key string) ([]int64, error) {
	v, size, err := f.array(key, "an array of integers", isInteger)
	if err != nil || size == 0 {
		return nil, err
	}
	out := make([]int64, v.n)
	for i := range out {
		u, neg, _ := integer(v.Elem, v.raw[i*size:(i+1)*size])
		if !neg && u > math.MaxInt64 {
			return nil, formatErr(f.name, v.pos, "key %q: element %d is %d, want at most 2^63-1", key, i, u)
		}
		out[i] = int64(u)
	}
	return out, nil
}

// Floats returns an array of f32, or of f64 rounded to float32; nil when the key is absent.
func (f *File) Floats(key string) ([]float32, error) {
	v, size, err := f.array(key, "arr[f32] or arr[f64]", func(t ValueType) bool { return t == Float32 || t == Float64 })
	if err != nil || size == 0 {
		return nil, err
	}
	out := make([]float32, v.n)
	for i := range out {
		x, _ := float(v.Elem, v.raw[i*size:(i+1)*size])
		out[i] = float32(x)
	}
	return out, nil
}

// Bools returns an array of bools, nil when the key is absent. Any byte but 0 is true.
func (f *File) Bools(key string) ([]bool, error) {
	v, size, err := f.array(key, "arr[bool]", func(t ValueType) bool { return t == Bool })
	if err != nil || size == 0 {
		return nil, err
	}
	out := make([]bool, v.n)
	for i := range out {
		out[i] = v.raw[i] != 0
	}
	return out, nil
}

// UintOrArray returns n integers, one per layer: those of an array of exactly n, or a single integer n times. Nil when the key
// is absent. n above 65536 and negative integers are errors.
func (f *File) UintOrArray(key string, n int) ([]uint64, error) {
	v, ok, err := f.lookup(key)
	if err != nil || !ok {
		return nil, err
	}
	if n < 0 || n > maxBroadcast {
		return nil, formatErr(f.name, v.pos, "key %q: wanted for %d layers, limit %d", key, n, maxBroadcast)
	}
	out := make([]uint64, n)
	if v.Type != Array {
		u, err := uintOf(f.name, key, v)
		if err != nil {
			return nil, err
		}
		for i := range out {
			out[i] = u
		}
		return out, nil
	}
	if !isInteger(v.Elem) {
		return nil, typeErr(f.name, key, v, "an integer or an array of integers")
	}
	if v.n != n {
		return nil, formatErr(f.name, v.pos, "key %q: %d elements, want %d", key, v.n, n)
	}
	size := int(v.Elem.size())
	for i := range out {
		u, neg, _ := integer(v.Elem, v.raw[i*size:(i+1)*size])
		if neg {
			return nil, formatErr(f.name, v.pos, "key %q: element %d is %d, want 0 or more", key, i, int64(u))
		}
		out[i] = u
	}
	return out, nil
}
