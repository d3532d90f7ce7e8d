package gguf

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/kernels"
)

// verifyModel writes a model of some 700 KB, so that tensors span chunks, with spoil applied to the bytes of "q".
func verifyModel(t *testing.T, typ kernels.Type, spoil func(q []byte)) string {
	t.Helper()
	const n = 512 * 1024
	w := NewWriter(3)
	vals := make([]float32, n)
	for i := range vals {
		vals[i] = float32(i%17) - 8
	}
	q := make([]byte, n/typ.BlockLen()*typ.BlockBytes())
	kernels.Quantize(typ, q, vals)
	if spoil != nil {
		spoil(q)
	}
	w.AddTensorBytes("q", typ, []uint64{256, n / 256}, q)
	w.AddTensorBytes("other", kernels.IQ1_M, []uint64{256}, bytes.Repeat([]byte{0xff}, 56))
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := w.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestVerify(t *testing.T) {
	cases := []struct {
		name  string
		typ   kernels.Type
		spoil func(q []byte)
		want  string // part of the error
		count int64
		first int64
	}{
		{"f32", kernels.F32, nil, "", 0, -1},
		{"f16", kernels.F16, nil, "", 0, -1},
		{"q8_0", kernels.Q8_0, nil, "", 0, -1},
		{"q4_k", kernels.Q4_K, nil, "", 0, -1},
		{"nan f32", kernels.F32, func(q []byte) { le.PutUint32(q[4*300001:], math.Float32bits(float32(math.NaN()))) },
			`tensor "q" (F32): element 300001 is NaN, 1 values not finite; 1 such tensors in all`, 1, 300001},
		{"inf bf16", kernels.BF16, func(q []byte) { le.PutUint16(q[2*77:], 0xff80) },
			`tensor "q" (BF16): element 77 is -Inf, 1 values not finite`, 1, 77},
		{"nan scale", kernels.Q8_0, func(q []byte) { le.PutUint16(q[34*10000:], 0x7e00) },
			`tensor "q" (Q8_0): element 320000 is NaN, 32 values not finite`, 32, 320000},
		{"inf super-block scale", kernels.Q4_K, func(q []byte) { le.PutUint16(q[144*5:], 0x7c00) },
			`tensor "q" (Q4_K): element 1280 is`, 256, 1280},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			f, err := Open(verifyModel(t, tc.typ, tc.spoil))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			var got []TensorCheck
			err = f.Verify(func(c TensorCheck) error { got = append(got, c); return nil })
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
			if len(got) != 2 || got[0].NonFinite != tc.count || got[0].First != tc.first || !got[0].Checked {
				t.Errorf("got %+v", got)
			}
			if len(got) == 2 && (got[1].Checked || got[1].Tensor.Name != "other") {
				t.Errorf("tensor without kernels: %+v", got[1])
			}
		})
	}
}

func TestVerifyCutFile(t *testing.T) {
	path := verifyModel(t, kernels.F16, nil)
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Truncate(path, 600000); err != nil {
		t.Fatal(err)
	}
	if err := f.Verify(nil); err == nil || !strings.Contains(err.Error(), `tensor "q": `) || !strings.Contains(err.Error(), "EOF") {
		t.Errorf("got %v", err)
	}
}

func TestVerifyStops(t *testing.T) {
	f, err := Parse("f", small().bytes())
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	n := 0
	if err := f.Verify(func(TensorCheck) error { n++; return stop }); err != stop || n != 1 {
		t.Errorf("got %v after %d reports", err, n)
	}
}

// TestChanged: bytes written in place are noticed, another file under the name is not one of them.
func TestChanged(t *testing.T) {
	path := verifyModel(t, kernels.Q8_0, nil)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(path string) {
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Changed(); err != nil {
		t.Error(err)
	}
	write(path + ".new")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if err := f.Changed(); err != nil {
		t.Errorf("renamed over: %v", err)
	}
	g, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	time.Sleep(20 * time.Millisecond) // a file's clock has ticks
	write(path)
	if err := g.Changed(); err == nil || !strings.Contains(err.Error(), path+": modified at ") {
		t.Errorf("written in place: %v", err)
	}
	in, err := Parse("in memory", data)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Changed(); err != nil {
		t.Error(err)
	}
}
