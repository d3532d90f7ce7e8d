package kernels

import "strconv"

//go:generate go run -C _gen ./vec -set vec -pkg kernels -out ../vec_amd64.s -stubs ../vec_stubs_amd64.go
//go:generate go run -C _gen ./vec -set exp -pkg kernels -out ../exp_amd64.s -stubs ../exp_stubs_amd64.go
//go:generate go run -C _gen ./vec -set acts -pkg kernels -out ../acts_amd64.s -stubs ../acts_stubs_amd64.go
//go:generate go run -C _gen ./vec -set dot -pkg kernels -out ../dot_amd64.s -stubs ../dot_stubs_amd64.go
//go:generate go run -C _gen ./vec -set attend -pkg kernels -out ../attend_amd64.s -stubs ../attend_stubs_amd64.go

// Plain float32 vectors. The exported functions allocate nothing, keep no reference to their arguments and may run
// concurrently on disjoint destinations.
//
// Every product stands in an explicit float32 conversion. Go may otherwise fuse x*y+z into one rounding on targets that
// have such an instruction (arm64, ppc64, s390x, riscv64), and the generic path would then differ between machines.

// dotLanes is the number of partial sums of Dot and of every other sum of this package: one AVX-512 register of float32,
// two of AVX2, so that the three forms add in one order. A kernel that wants more chains takes several rows at once.
const dotLanes = 16

// Dot returns the sum of a[i]*b[i]. len(a) must equal len(b); the sum of nothing is 0.
//
// The order is fixed: partial sum l adds the products with i mod 16 = l in ascending i, and the sixteen are folded in
// halves: l and l+8, then l and l+4, l and l+2, l and l+1. MulRows uses the same order for float32 activations. The error
// is at most (ceil(n/16)+5)*2^-24 * sum|a[i]*b[i]|.
func Dot(a, b []float32) float32 {
	if len(a) != len(b) {
		panicLen("Dot", len(a), len(b))
	}
	var acc [dotLanes]float32
	dotPart(&acc, a, b)
	return fold(&acc)
}

// fold is the last step of Dot.
func fold[F float32 | float64](s *[dotLanes]F) F {
	return (((s[0] + s[8]) + (s[4] + s[12])) + ((s[2] + s[10]) + (s[6] + s[14]))) +
		(((s[1] + s[9]) + (s[5] + s[13])) + ((s[3] + s[11]) + (s[7] + s[15])))
}

// dotPartGeneric adds the products to their lanes. Eight lanes at a time, because sixteen sums and their operands do not
// fit into the registers of most processors.
func dotPartGeneric(acc *[dotLanes]float32, a, b []float32) {
	n := len(a) &^ (dotLanes - 1)
	dotEight((*[8]float32)(acc[:8]), a[:n], b[:n])
	if n > 0 {
		dotEight((*[8]float32)(acc[8:]), a[8:n], b[8:n])
	}
	for i, v := range a[n:] {
		acc[i] += float32(v * b[n+i])
	}
}

// dotEight takes the first eight of every sixteen.
func dotEight(acc *[8]float32, a, b []float32) {
	s0, s1, s2, s3, s4, s5, s6, s7 := acc[0], acc[1], acc[2], acc[3], acc[4], acc[5], acc[6], acc[7]
	for len(a) >= 8 && len(b) >= 8 { // the second condition removes the bounds checks
		s0 += float32(a[0] * b[0])
		s1 += float32(a[1] * b[1])
		s2 += float32(a[2] * b[2])
		s3 += float32(a[3] * b[3])
		s4 += float32(a[4] * b[4])
		s5 += float32(a[5] * b[5])
		s6 += float32(a[6] * b[6])
		s7 += float32(a[7] * b[7])
		if len(a) < dotLanes || len(b) < dotLanes {
			break
		}
		a, b = a[dotLanes:], b[dotLanes:]
	}
	*acc = [8]float32{s0, s1, s2, s3, s4, s5, s6, s7}
}

// Axpy adds a*x[i] to dst[i], product and sum rounded apart. len(x) must equal len(dst); x may be dst.
func Axpy(dst []float32, a float32, x []float32) {
	if len(dst) != len(x) {
		panicLen("Axpy", len(dst), len(x))
	}
	axpy(dst, a, x)
}

func axpyGeneric(dst []float32, a float32, x []float32) {
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
	add(dst, x)
}

func addGeneric(dst, x []float32) {
	for i, v := range x {
		dst[i] += v
	}
}

// scaleGeneric writes x[i]*a to dst[i].
func scaleGeneric(dst, x []float32, a float32) {
	for i, v := range x {
		dst[i] = v * a
	}
}

// panicLen stays out of line so that the checks above inline to a compare and a jump.
//
//go:noinline
func panicLen(what string, a, b int) {
	panic("kernels: " + what + ": lengths " + strconv.Itoa(a) + " and " + strconv.Itoa(b) + " differ")
}
