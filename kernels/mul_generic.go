package kernels

// A tile of weight rows and activation rows is computed at a time: a weight chunk is decoded once for tileActs
// activation rows, an activation chunk is packed once for tileRows weight rows.
const (
	tileRows = 32
	tileActs = 8
)

// mulRowsGeneric is the reference, and what runs where there is no assembly.
func mulRowsGeneric(c *mul) {
	if c.x.Kind == ActF32 {
		mulFloat(c)
		return
	}
	mulInt(c)
}

// mulInt is the product with quantised activations.
func mulInt(c *mul) {
	var (
		t     = c.w.Type
		f     = t.form()
		super = c.x.Kind == ActQ8_K
		nx    = c.x.N
		size  = t.RowBytes(nx)    // of a weight row
		step  = t.RowBytes(chunk) // of a weight chunk
		perD  = c.x.Kind.block()  // activations per scale
		b     block               // the weight chunk
		xp    [tileActs]lanes     // the activation chunks
		acc   [tileRows][tileActs]float32
	)
	for i0 := 0; i0 < c.n; i0 += tileActs {
		m := min(tileActs, c.n-i0)
		for ra := c.r0; ra < c.r1; ra += tileRows {
			rows := min(tileRows, c.r1-ra)
			clear(acc[:rows])
			for k := 0; k < nx; k += chunk {
				nk := min(chunk, nx-k)
				for i := range m {
					at := c.row(i0+i)*nx + k
					xp[i].pack(c.x.Q[at : at+nk])
				}
				for r := range rows {
					at := (ra+r)*size + k/chunk*step
					b.decode(t, c.w.Data[at:min(at+step, (ra+r+1)*size)])
					b.fold(f, super)
					for i := range m {
						at := c.row(i0+i)*nx + k
						d, sums := c.x.D[at/perD:(at+nk)/perD], c.x.Sums[at/16:(at+nk)/16]
						if super {
							acc[r][i] += b.dotSuper(f, &xp[i], d[0], sums)
						} else {
							acc[r][i] = b.dotSmall(f, &xp[i], d, sums, acc[r][i])
						}
					}
				}
			}
			for i := range m {
				for r := range rows {
					c.put(i0+i, ra+r, acc[r][i])
				}
			}
		}
	}
}

// fold makes mn the factor of each group's activation sum for a biased super-block: sum(sc*(u-bias)*x) is
// sum(sc*u*x) - sum(bias*sc*x).
func (b *block) fold(f form, super bool) {
	if super && !f.mins {
		for g, s := range b.sc {
			b.mn[g] = f.bias * s
		}
	}
}

// dotSuper returns the product with one super-block of activations, d their scale. The integers are exact in int32, with
// the bias still in as without: codes below 256, activations within 127 and scales within 128 (those of Q6_K; all others
// are smaller) give at most 256*255*127*128 < 2^31 over the block.
func (b *block) dotSuper(f form, x *lanes, d float32, sums []int16) float32 {
	var s [chunk / 16]int32
	x.sums(&s, &b.u, f.bits)
	var isum, msum int32
	sums = sums[:16]
	for g, v := range s {
		isum += b.sc[g] * v
		msum += b.mn[g] * int32(sums[g])
	}
	if !f.mins {
		return float32(float32(b.d[0]*d) * float32(isum-msum))
	}
	return float32(float32(b.d[0]*d)*float32(isum)) - float32(float32(b.d[1]*d)*float32(msum))
}

// dotSmall adds the products with len(d) blocks of 32 activations to acc, one after the other.
func (b *block) dotSmall(f form, x *lanes, d []float32, sums []int16, acc float32) float32 {
	var s [chunk / 16]int32
	x.sums(&s, &b.u, f.bits)
	for j, dx := range d {
		xs := int32(sums[2*j]) + int32(sums[2*j+1])
		v := float32(float32(b.d[j]*dx) * float32(s[2*j]+s[2*j+1]-f.bias*xs))
		if f.mins {
			v += float32(float32(b.m[j]*dx) * float32(xs))
		}
		acc += v
	}
	return acc
}
