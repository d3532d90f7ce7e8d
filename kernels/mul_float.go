package kernels

// mulFloatGeneric is the product with float32 activations: the order is that of Dot over the dequantised row, with its partial
// sums carried from chunk to chunk.
func mulFloatGeneric(c *mul) {
	var (
		t    = c.w.Type
		nx   = c.x.N
		size = t.RowBytes(nx)
		step = t.RowBytes(chunk)
		b    block
		wf   [chunk]float32
		acc  [tileActs][dotLanes]float32
	)
	for i0 := 0; i0 < c.n; i0 += tileActs {
		m := min(tileActs, c.n-i0)
		for r := c.r0; r < c.r1; r++ {
			clear(acc[:m])
			for k := 0; k < nx; k += chunk {
				nk := min(chunk, nx-k)
				at := r*size + k/chunk*step
				b.chunkFloats(t, wf[:nk], c.w.Data[at:min(at+step, (r+1)*size)])
				for i := range m {
					at := c.row(i0+i)*nx + k
					dotPart(&acc[i], wf[:nk], c.x.F[at:at+nk])
				}
			}
			for i := range m {
				c.put(i0+i, r, fold(&acc[i]))
			}
		}
	}
}
