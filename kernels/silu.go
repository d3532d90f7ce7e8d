package kernels

// Sigmoid returns 1/(1+e^-x). It takes the exponential of -|x| only, so nothing overflows and a very negative x keeps its
// relative accuracy (at most 4 units in the last place for normal results). NaN gives NaN, +Inf gives 1, -Inf gives 0.
func Sigmoid(x float32) float32 {
	if x < 0 {
		e := Exp(x)
		return e / (1 + e)
	}
	return 1 / (1 + Exp(-x))
}

// SiluMul writes silu(gate[i])*up[i] to dst[i], where silu(x) = x*Sigmoid(x) (Elfwing, Uchibe and Doya, "Sigmoid-Weighted
// Linear Units", section 2; with the product it is the SwiGLU of Shazeer, "GLU Variants Improve Transformer"). The three
// have one length; dst may be gate or up. gate = -Inf gives NaN: an activation that overflowed must stay visible. It
// allocates nothing.
func SiluMul(dst, gate, up []float32) {
	if len(dst) != len(gate) {
		panicLen("SiluMul gate", len(dst), len(gate))
	}
	if len(dst) != len(up) {
		panicLen("SiluMul up", len(dst), len(up))
	}
	siluMul(dst, gate, up)
}

func siluMulGeneric(dst, gate, up []float32) {
	for i, g := range gate {
		dst[i] = float32(g*Sigmoid(g)) * up[i]
	}
}
