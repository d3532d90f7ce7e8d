package kernels

import "strconv"

// Plain float32 vectors. The three functions allocate nothing, keep no reference to their arguments and may run
// concurrently on disjoint destinations.
//
// Every product stands in an explicit float32 conversion. Go may otherwise fuse x*y+z into one rounding on targets that
// have such an instruction (arm64, ppc64, s390x, riscv64), and the generic path would then differ between machines.

// dotLanes is the number of partial sums of Dot. Eight independent chains hide the latency of a scalar add and still
// leave registers for the operands.
const dotLanes = 8

// Dot returns the sum of a[i]*b[i]. len(a) must equal len(b); the sum of nothing is 0.
//
// The order is fixed: partial sum l adds the products with i mod 8 = l in ascending i, and the eight are folded as
// ((0+4)+(2+6)) + ((1+5)+(3+7)). MulRows uses the same order for F32 weights. The error is at most
// (ceil(n/8)+4)*2^-24 * sum|a[i]*b[i]|.
func Dot(a, b []float32) float32 {
	if len(a) != len(b) {
		panicLen("Dot", len(a), len(b))
	}
	var s0, s1, s2, s3, s4, s5, s6, s7 float32
	for len(a) >= dotLanes && len(b) >= dotLanes { // the second condition removes the bounds checks
		s0 += float32(a[0] * b[0])
		s1 += float32(a[1] * b[1])
		s2 += float32(a[2] * b[2])
		s3 += float32(a[3] * b[3])
		s4 += float32(a[4] * b[4])
		s5 += float32(a[5] * b[5])
		s6 += float32(a[6] * b[6])
		s7 += float32(a[7] * b[7])
		a, b = a[dotLanes:], b[dotLanes:]
	}
	if len(a) > 0 {
		var t [dotLanes]float32
		for i, v := range a {
			t[i&(dotLanes-1)] = float32(v * b[i])
		}
		s0 += t[0]
		s1 += t[1]
		s2 += t[2]
		s3 += t[3]
		s4 += t[4]
		s5 += t[5]
		s6 += t[6]
	}
	return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
}

// Axpy adds a*x[i] to dst[i], product and sum rounded apart. len(x) must equal len(dst); x may be dst.
func Axpy(dst []float32, a float32, x []float32) {
	if len(dst) != len(x) {
		panicLen("Axpy", len(dst), len(x))
	}
	for len(dst) >= 4 && len(x) >= 4 {
		dst[0] += float32(a * x[0])
		dst[1] += float32(a * x[1])
		dst[2] += float32(a * x[2])
		dst[3] += float32(a * x[3])
		dst, x = dst[4:], x[4:]
	}
	for i := range dst {
		dst[i] += float32(a * x[i])
	}
}

// Add adds x[i] to dst[i]. len(x) must equal len(dst); x may be dst.
func Add(dst, x []float32) {
	if len(dst) != len(x) {
		panicLen("Add", len(dst), len(x))
	}
	for i, v := range x {
		dst[i] += v
	}
}

// panicLen stays out of line so that the checks above inline to a compare and a jump.
//
//go:noinline
func panicLen(what string, a, b int) {
	panic("kernels: " + what + ": lengths " + strconv.Itoa(a) + " and " + strconv.Itoa(b) + " differ")
}
