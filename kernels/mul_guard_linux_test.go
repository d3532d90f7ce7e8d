package kernels

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// atPageEnd copies b so that the byte after its end (or, with start, the one before its beginning) cannot be read.
func atPageEnd(t *testing.T, b []byte, start bool) []byte {
	t.Helper()
	page := unix.Getpagesize()
	n := (len(b) + page - 1) / page * page
	m, err := unix.Mmap(-1, 0, n+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(m) })
	lo := page + n - len(b)
	if start {
		lo = page
	}
	out := m[lo : lo+len(b) : lo+len(b)]
	copy(out, b)
	for _, guard := range [][]byte{m[:page], m[page+n:]} {
		if err := unix.Mprotect(guard, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func bytesOf[T any](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

func sliceOf[T any](b []byte) []T {
	var z T
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(z)))
}

// TestMulISAPages puts weights, activations and results against pages that cannot be touched: a canary shows a stray
// write, not a stray read.
func TestMulISAPages(t *testing.T) {
	isas(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(29, 30))
		for _, typ := range quantised() {
			for _, start := range []bool{false, true} {
				for _, cols := range []int{256, 3 * typ.BlockLen(), typ.BlockLen()} {
					const rows, n = 41, 7
					w := randomMat(t, rng, typ, rows, cols)
					w.Data = atPageEnd(t, w.Data, start)
					x := randomActs(rng, typ.ActKind(), cols, n)
					x.Q = sliceOf[int8](atPageEnd(t, bytesOf(x.Q), start))
					x.D = sliceOf[float32](atPageEnd(t, bytesOf(x.D), start))
					x.Sums = sliceOf[int16](atPageEnd(t, bytesOf(x.Sums), start))
					dst := sliceOf[float32](atPageEnd(t, make([]byte, 4*n*rows), start))
					drow, scale := []int32{0, 1, 2, 3, 4, 5, 6}, normals(rng, n)
					for _, m := range []int{1, n} {
						MulRows(dst, rows, &w, 0, rows, x, nil, m)
						MulRows(dst, rows, &w, 37, rows, x, drow[n-m:], m)
						MulAddRows(dst, rows, &w, 0, rows, x, n-m, drow[n-m:], scale[n-m:])
						MulAddRows(dst, rows, &w, 3, 9, x, 0, drow[:m], scale[:m])
					}
				}
			}
		}
	})
}
