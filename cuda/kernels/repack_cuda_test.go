//go:build cuda

package kernels_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	dev "sluice/cuda/kernels"
	"sluice/kernels"
)

// TestCUDARepack compares the planes with those that the layouts in repack.go describe, block by block.
func TestCUDARepack(t *testing.T) {
	for _, typ := range productTypes {
		if !dev.NeedsRepack(typ) {
			continue
		}
		for _, shape := range [][2]int{{1, 256}, {3, 256}, {7, 768}, {33, 512}} {
			rows, k := shape[0], shape[1]
			t.Run(fmt.Sprintf("type=%v/rows=%d/k=%d", typ, rows, k), func(t *testing.T) {
				r := rand.New(rand.NewPCG(1, uint64(rows)))
				raw := make([]byte, rows*typ.RowBytes(k))
				for i := range raw {
					raw[i] = byte(r.Uint32())
				}
				dst := alloc(t, dev.DeviceBytes(typ, rows, k))
				run(t, dev.Repack(typ, dst, upload(t, raw), rows, k))
				if got, want := download[byte](t, dst, len(raw)), planes(typ, raw); !bytes.Equal(got, want) {
					at := 0
					for got[at] == want[at] {
						at++
					}
					t.Fatalf("byte %d of %d is %#x, want %#x", at, len(raw), got[at], want[at])
				}
			})
		}
	}
}

// planes is Repack on the host.
func planes(typ kernels.Type, raw []byte) []byte {
	var plane [4][]byte
	for ; len(raw) > 0; raw = raw[typ.BlockBytes():] {
		if typ != kernels.Q6_K {
			plane[0] = append(plane[0], raw[2:typ.BlockBytes()]...)
			plane[1] = append(plane[1], raw[:2]...)
			continue
		}
		plane[0] = append(plane[0], raw[:128]...)
		plane[1] = append(plane[1], raw[128:192]...)
		for h := range 2 {
			for i := range 4 { // element e has scale e/16
				plane[2] = append(plane[2], raw[192+(128*h+16*i)/16], raw[192+(128*h+64+16*i)/16])
			}
		}
		plane[3] = append(plane[3], raw[208:210]...)
	}
	return bytes.Join(plane[:], nil)
}
