package kernels

import "math"

// The recipe of Exp. These constants, and the steps below, are one half of a contract: the device kernels and any C
// twin carry the same ones, and testdata/exp.golden pins the bits that come out. All are exact float32 values, written
// as hexadecimal so that Go, C and CUDA read the same number.
const (
	expMax   float32 = 89              // above it the result is +Inf; the true limit, 88.7228, rounds to +Inf by itself
	expMin   float32 = -104            // below it the result is +0; e^-104 is less than half the smallest denormal
	expLog2E float32 = 0x1.715476p+0   // 1/ln 2
	expMagic float32 = 0x1.8p+23       // 1.5*2^23: adding it leaves the nearest integer (ties to even) in the low bits
	expLn2Hi float32 = 0x1.63p-1       // ln 2 to 9 bits, so that k*expLn2Hi is exact for every k that occurs
	expLn2Lo float32 = -0x1.bd0106p-13 // ln 2 - expLn2Hi

	// e^r = 1 + r + r^2*(c2 + c3*r + ... + c6*r^4) for |r| <= 0.34675. Minimax in relative error (2^-28.2), each
	// coefficient rounded to float32 in turn and the rest fitted again.
	expC2 float32 = 0x1.fffffcp-2
	expC3 float32 = 0x1.555492p-3
	expC4 float32 = 0x1.5558b2p-5
	expC5 float32 = 0x1.12398ep-7
	expC6 float32 = 0x1.6a4b34p-10
)

// Exp returns e**x, at most 2 units in the last place from the true value (0.991 measured over every float32), denormal
// results included. NaN gives the NaN 0x7fc00000, -Inf gives +0, +Inf and whatever is too large give +Inf. Exp(0) is 1.
//
// It is not math.Exp rounded: the routers of the CPU and of the device must agree in every bit, so this is a fixed
// sequence of single float32 operations, each rounded to nearest even, none fused, denormals kept:
//
//	1  x is NaN -> NaN; x > 89 -> +Inf; x < -104 -> 0
//	2  t = x*log2e + magic          t = add(mul(x, log2e), magic)
//	3  n = t - magic                the integer nearest to x/ln 2, as a float
//	4  k = bits(t) - bits(magic)    the same integer, as an int32 (subtract the bit patterns)
//	5  r = x - n*ln2hi              exact: product and difference
//	6  r = r - n*ln2lo
//	7  q = c6; q = q*r + c5; q = q*r + c4; q = q*r + c3; q = q*r + c2
//	8  p = ((q*(r*r)) + r) + 1
//	9  k1 = k>>1; p = p*2^k1; p = p*2^(k-k1)    the first is exact, the second rounds once if denormal
//
// On a device write __fmul_rn, __fadd_rn and __fsub_rn and compile without -ftz=true; in C compile with
// -ffp-contract=off and without -ffast-math. Exp does not allocate and is safe for concurrent use.
func Exp(x float32) float32 {
	switch {
	case x != x:
		return math.Float32frombits(0x7fc00000)
	case x > expMax:
		return float32(math.Inf(1))
	case x < expMin:
		return 0
	}
	// The conversions look redundant; each keeps a product from being fused into the addition that follows.
	t := float32(x*expLog2E) + expMagic
	n := t - expMagic
	k := int32(math.Float32bits(t)) - int32(math.Float32bits(expMagic))

	r := x - float32(n*expLn2Hi)
	r = r - float32(n*expLn2Lo)

	q := expC6
	q = float32(q*r) + expC5
	q = float32(q*r) + expC4
	q = float32(q*r) + expC3
	q = float32(q*r) + expC2
	p := float32(q*float32(r*r)) + r
	p = p + 1

	// Two factors because 2^k alone is not a normal float32 for k = 128 and for k < -126.
	k1 := k >> 1
	p = float32(p * math.Float32frombits(uint32(k1+127)<<23))
	return float32(p * math.Float32frombits(uint32(k-k1+127)<<23))
}
