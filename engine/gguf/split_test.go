package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// shards returns a set of three with 2, 1 and 2 tensors. As with the usual splitting tool only the first shard has other keys
// than those of the split.
func shards() []*raw {
	out := make([]*raw, 3)
	for i := range out {
		r := newRaw()
		if i == 0 {
			r.key("general.architecture", String, str("llama"))
		}
		out[i] = r.u16(keySplitNo, uint16(i)).u16(keySplitCount, 3).key(keySplitTensors, Int32, le.AppendUint32(nil, 5))
	}
	out[0].f32("a", 8).f32("b", 4)
	out[1].f32("c", 8)
	out[2].f32("d", 5).f32("e", 8)
	return out
}

func writeShards(t *testing.T, dir string, rs []*raw) []string {
	t.Helper()
	var paths []string
	for i, r := range rs {
		paths = append(paths, writeTemp(t, dir, fmt.Sprintf("m-%05d-of-%05d.gguf", i+1, len(rs)), r.bytes()))
	}
	return paths
}

func TestSplitOpensFromAnyShard(t *testing.T) {
	for given, path := range writeShards(t, t.TempDir(), shards()) {
		f, err := Open(path)
		if err != nil {
			t.Fatalf("shard %d: %v", given, err)
		}
		var got []string
		for i, ts := range f.Tensors() {
			got = append(got, fmt.Sprintf("%s:%d:%d", ts.Name, ts.Shard, ts.Data()[0]))
			sh := f.Shards()[ts.Shard]
			if !bytes.Equal(sh.Data[ts.Offset:ts.Offset+ts.Size], ts.Data()) {
				t.Errorf("shard %d: tensor %d is not where its Offset says", given, i)
			}
			whole := make([]byte, ts.Size)
			if _, err := sh.File.ReadAt(whole, ts.Offset); err != nil || !bytes.Equal(whole, ts.Data()) {
				t.Errorf("shard %d: tensor %d read from the file differs: %v", given, i, err)
			}
		}
		if s := strings.Join(got, " "); s != "a:0:0 b:0:0 c:1:0 d:2:0 e:2:0" {
			t.Errorf("shard %d: tensors %s", given, s)
		}
		if arch, err := f.NeedString("general.architecture"); arch != "llama" || err != nil {
			t.Errorf("shard %d: architecture %q, %v", given, arch, err)
		}
		if !strings.HasSuffix(f.Name(), "m-00001-of-00003.gguf") || len(f.Shards()) != 3 {
			t.Errorf("shard %d: name %s, %d shards", given, f.Name(), len(f.Shards()))
		}
		if err := f.Verify(nil); err != nil {
			t.Errorf("shard %d: %v", given, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestSplitMismatch(t *testing.T) {
	set := func(r *raw, key string, v uint16) { // rewrites a u16 key
		for i, k := range r.keys {
			if bytes.HasPrefix(k, str(key)) {
				r.keys[i] = newRaw().u16(key, v).keys[0]
			}
		}
	}
	drop := func(r *raw, key string) {
		for i, k := range r.keys {
			if bytes.HasPrefix(k, str(key)) {
				r.keys = append(r.keys[:i], r.keys[i+1:]...)
				return
			}
		}
	}
	rename := func(from, to string) func(dir string) error {
		return func(dir string) error { return os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)) }
	}
	const s1, s2, s3 = "m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"
	cases := []struct {
		name string
		edit func(rs []*raw)
		move func(dir string) error
		open string
		want string // DIR stands for the folder
	}{
		{"count of a sibling", func(rs []*raw) { set(rs[1], keySplitCount, 4) }, nil, s1,
			`gguf: DIR/` + s2 + `: key "split.count": 4, but 3 in DIR/` + s1},
		{"count of the given one", func(rs []*raw) { set(rs[0], keySplitCount, 4) }, nil, s1,
			`gguf: DIR/` + s1 + `: keys say shard 1 of 4, so the name must end in "-00001-of-00004.gguf"`},
		{"count 1 in a set", func(rs []*raw) { set(rs[0], keySplitCount, 1) }, nil, s1,
			`gguf: DIR/` + s1 + `: key "split.tensors.count": 5, but 2 tensors in 1 files`},
		{"count 0 in a set", func(rs []*raw) { set(rs[0], keySplitCount, 0) }, nil, s1,
			`gguf: DIR/` + s1 + `: key "split.tensors.count": 5, but 2 tensors in 1 files`},
		{"count renamed", nil, rename(s2, "m-00002-of-00004.gguf"), "m-00002-of-00004.gguf",
			`gguf: DIR/m-00002-of-00004.gguf: keys say shard 2 of 3, so the name must end in "-00002-of-00003.gguf"`},
		{"not named like a shard", nil, rename(s2, "m.gguf"), "m.gguf",
			`gguf: DIR/m.gguf: keys say shard 2 of 3, so the name must end in "-00002-of-00003.gguf"`},
		{"number of a sibling", func(rs []*raw) { set(rs[2], keySplitNo, 1) }, nil, s1,
			`gguf: DIR/` + s3 + `: key "split.no": 1, but the name says 2 (counted from 0)`},
		{"number out of range", func(rs []*raw) { set(rs[2], keySplitNo, 3) }, nil, s3,
			`gguf: DIR/` + s3 + `: key "split.no": 3, want below the 3 of key "split.count"`},
		{"number missing", func(rs []*raw) { drop(rs[1], keySplitNo) }, nil, s1,
			`gguf: DIR/` + s2 + `: key "split.count" is 3 but key "split.no" is missing`},
		{"count missing", func(rs []*raw) { drop(rs[1], keySplitCount) }, nil, s1,
			`gguf: DIR/` + s2 + `: key "split.no" without key "split.count"`},
		{"no split keys in a sibling", func(rs []*raw) { rs[1].keys = nil }, nil, s1,
			`gguf: DIR/` + s2 + `: key "split.count": 0, but 3 in DIR/` + s1},
		{"total of a sibling", func(rs []*raw) { set(rs[1], keySplitTensors, 6) }, nil, s3,
			`gguf: DIR/` + s2 + `: key "split.tensors.count": 6, but 5 in DIR/` + s3},
		{"total missing", func(rs []*raw) { drop(rs[0], keySplitTensors) }, nil, s1,
			`gguf: DIR/` + s1 + `: key "split.tensors.count" is missing, wanted in the first of 3 shards`},
		{"a tensor more than the total", func(rs []*raw) { rs[1].f32("x", 8) }, nil, s1,
			`gguf: DIR/` + s1 + `: key "split.tensors.count": 5, but 6 tensors in 3 files`},
		{"duplicate tensor", func(rs []*raw) {
			rs[2] = shards()[2]
			rs[2].infos, rs[2].data = nil, nil
			rs[2].f32("d", 5).f32("a", 8)
		}, nil, s2,
			`gguf: DIR/` + s3 + `: at 0x8b: tensor 1 "a": duplicate name, also tensor 0 of DIR/` + s1 + ` at 0x97`},
		{"type of a key", func(rs []*raw) {
			drop(rs[1], keySplitNo)
			rs[1].key(keySplitNo, String, str("1"))
		}, nil, s1, `gguf: DIR/` + s2 + `: at 0x64: key "split.no": type str, want an integer`},
		{"negative total", func(rs []*raw) {
			drop(rs[1], keySplitTensors)
			rs[1].key(keySplitTensors, Int32, []byte{0xff, 0xff, 0xff, 0xff})
		}, nil, s1, `gguf: DIR/` + s2 + `: at 0x62: key "split.tensors.count": -1, want 0 or more`},
		{"absurd count", func(rs []*raw) { drop(rs[0], keySplitCount); rs[0].u32(keySplitCount, 1<<31) }, nil, s1,
			`gguf: DIR/` + s1 + `: key "split.count": 2147483648, want at most 65535`},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			rs := shards()
			if tc.edit != nil {
				tc.edit(rs)
			}
			writeShards(t, dir, rs)
			if tc.move != nil {
				if err := tc.move(dir); err != nil {
					t.Fatal(err)
				}
			}
			_, err := Open(filepath.Join(dir, tc.open))
			want := strings.ReplaceAll(tc.want, "DIR", dir)
			if err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
			if !errors.Is(err, ErrFormat) {
				t.Errorf("%v is not ErrFormat", err)
			}
		})
	}
}

func TestSplitMissingFile(t *testing.T) {
	dir := t.TempDir()
	paths := writeShards(t, dir, shards())
	if err := os.Remove(paths[2]); err != nil {
		t.Fatal(err)
	}
	_, err := Open(paths[1])
	if !errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrFormat) {
		t.Errorf("got %v, want ErrNotExist", err)
	}
	if err == nil || !strings.Contains(err.Error(), "shard 3 of 3, wanted by "+paths[1]) {
		t.Errorf("got %v, want the shard and who wanted it", err)
	}
}

// TestNamedLikeShard opens whole files whose names look like a shard's: keys decide, not names.
func TestNamedLikeShard(t *testing.T) {
	dir := t.TempDir()
	merged := small().u16(keySplitNo, 0).u16(keySplitCount, 0).key(keySplitTensors, Int32, le.AppendUint32(nil, 3))
	one := small().u16(keySplitNo, 0).u16(keySplitCount, 1).key(keySplitTensors, Int32, le.AppendUint32(nil, 3))
	for name, r := range map[string]*raw{
		"plain-00001-of-00013.gguf": small(), "merged-00002-of-00003.gguf": merged, "one.gguf": one,
	} {
		f, err := Open(writeTemp(t, dir, name, r.bytes()))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(f.Tensors()) != 3 || len(f.Shards()) != 1 {
			t.Errorf("%s: %d tensors in %d shards", name, len(f.Tensors()), len(f.Shards()))
		}
		f.Close()
	}
}

func TestSplitInMemory(t *testing.T) {
	_, err := Parse("f", shards()[1].bytes())
	if want := "gguf: f: shard 2 of 3, want a whole model: shards can be opened from files only"; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "no.gguf")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "not a regular file (d") {
		t.Errorf("got %v", err)
	}
	if _, err := Open(writeTemp(t, dir, "empty.gguf", nil)); !errors.Is(err, ErrFormat) {
		t.Errorf("got %v", err)
	}
}

// TestSplitFirstWithoutTensors opens a set whose first shard has metadata only, as a splitting tool writes on request.
func TestSplitFirstWithoutTensors(t *testing.T) {
	rs := shards()
	rs[0].infos, rs[0].data = nil, nil
	for i, r := range rs { // the total is the last key
		r.keys = r.keys[:len(r.keys)-1]
		rs[i] = r.key(keySplitTensors, Int32, le.AppendUint32(nil, 3))
	}
	f, err := Open(writeShards(t, t.TempDir(), rs)[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if ts, ok := f.Tensor("c"); !ok || ts.Shard != 1 || len(f.Tensors()) != 3 {
		t.Errorf("%d tensors, c is %+v", len(f.Tensors()), ts)
	}
}
