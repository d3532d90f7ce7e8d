package kernels_test

import (
	"math"
	"math/rand/v2"

	"sluice/moe"
)

// randomRouter draws a router of up to maxExpert experts (a few more with groups) with every switch.
func randomRouter(rng *rand.Rand, maxExpert int) moe.Router {
	r := moe.Router{NExpert: 1 + rng.IntN(maxExpert), Gating: moe.Gating(rng.IntN(3)), Norm: rng.IntN(2) == 0, Scale: 1}
	if rng.IntN(2) == 0 {
		r.Scale = 0.25 + 3*rng.Float32()
	}
	reach := r.NExpert
	if r.Gating != moe.GatingSoftmaxTopK {
		if rng.IntN(2) == 0 {
			r.NGroup = 2 + rng.IntN(7)
			size := 1 + r.NExpert/r.NGroup
			r.NExpert = size * r.NGroup
			r.NGroupUsed = 1 + rng.IntN(r.NGroup)
			reach = size * r.NGroupUsed
		}
		if rng.IntN(2) == 0 {
			r.Bias = randomBias(rng, r.NExpert)
		}
	}
	r.NUsed = 1 + rng.IntN(min(reach, 40))
	return r
}

// randomBias draws either distinct values or few, so that scores tie through the bias or vanish beside it.
func randomBias(rng *rand.Rand, n int) []float32 {
	b := make([]float32, n)
	coarse := rng.IntN(2) == 0
	for i := range b {
		if b[i] = 2*rng.Float32() - 1.5; coarse {
			b[i] = float32(rng.IntN(3)-2) * 6
		}
	}
	return b
}

// logitKinds are the ways in which fillLogits hurts.
const logitKinds = 9

// fillLogits draws logits of one kind: ties, denormals and signed zeros, huge spreads, sigmoids that go denormal, any
// bits of a small number, equal rows, plain; and some -Inf.
func fillLogits(rng *rand.Rand, x []float32, kind int) {
	for i := range x {
		switch kind {
		case 0:
			x[i] = float32(rng.IntN(3))
		case 1:
			x[i] = math.Float32frombits(uint32(rng.IntN(2))<<31 | uint32(rng.IntN(4)))
		case 2:
			x[i] = float32(60 * rng.NormFloat64())
		case 3:
			x[i] = -80 - 30*rng.Float32()
		case 4:
			x[i] = math.Float32frombits(rng.Uint32()&^(1<<30)) * float32(rng.IntN(2))
		case 5:
			x[i] = 0.5
		case 6:
			x[i] = math.MaxFloat32 * (2*rng.Float32() - 1)
		default:
			x[i] = float32(rng.NormFloat64())
		}
		if kind != 5 && rng.IntN(40) == 0 {
			x[i] = float32(math.Inf(-1))
		}
	}
}

// randomCall draws a call of rows rows for r, with residency and policy more often than not.
func randomCall(rng *rand.Rand, r *moe.Router, rows int) *moe.Call {
	n, k := r.NExpert, r.NUsed
	c := &moe.Call{Layer: 2, T: rows, Pos0: 7, Router: r, Logits: make([]float32, rows*n), Sel: moe.NewSelection(k, rows), Table: moe.NewTable(n, k, rows)}
	fillLogits(rng, c.Logits, rng.IntN(logitKinds))
	if rng.IntN(4) != 0 {
		c.Resident = make([]uint8, n)
		some := rng.IntN(6)
		for i := range c.Resident {
			c.Resident[i] = uint8(max(0, rng.IntN(6)-some))
		}
	}
	if rng.IntN(4) != 0 {
		c.Drop = &moe.Drop{Frac: float64(rng.IntN(9)) / 8, Renorm: rng.IntN(3) != 0}
		if rng.IntN(2) == 0 {
			c.Drop.Frac = rng.Float64()
		}
	}
	if rng.IntN(2) == 0 {
		c.Exempt = make([]bool, rows)
		for i, p := 0, rng.IntN(5); i < rows; i++ {
			c.Exempt[i] = rng.IntN(4) < p
		}
	}
	return c
}
