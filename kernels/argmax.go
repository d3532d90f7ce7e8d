package kernels

import "strconv"

// ArgMax returns the index of the first largest value of x, and -1 if x is empty or holds a NaN: no choice is better than
// a silent one.
func ArgMax(x []float32) int { return argMax(x) }

func argMaxGeneric(x []float32) int {
	best := -1
	for i, v := range x {
		if v != v {
			return -1
		}
		if best < 0 || v > x[best] {
			best = i
		}
	}
	return best
}

// TopK fills dst with the indices of the len(dst) largest values of x, by value descending, the lower index first where
// values are equal. NaN ranks below everything else, -Inf included. len(dst) must not exceed len(x). It allocates nothing:
// dst itself is the heap. O(n log k).
func TopK(dst []int32, x []float32) {
	k := len(dst)
	if k > len(x) {
		panicTopK(k, len(x))
	}
	if k == 0 {
		return
	}
	for i := range dst {
		dst[i] = int32(i)
	}
	// The root of the heap is the worst index kept.
	for i := k/2 - 1; i >= 0; i-- {
		siftDown(dst, i, x)
	}
	for i := k; i < len(x); i++ {
		if i += nextAbove(x[i:], x[dst[0]]); i == len(x) {
			break
		}
		if worse(x, dst[0], int32(i)) {
			dst[0] = int32(i)
			siftDown(dst, 0, x)
		}
	}
	for end := k - 1; end > 0; end-- {
		dst[0], dst[end] = dst[end], dst[0]
		siftDown(dst[:end], 0, x)
	}
}

// nextAboveGeneric returns the first index that is not known to rank after a value of t, len(x) if there is none: where
// x[i] is larger, or either is NaN.
func nextAboveGeneric(x []float32, t float32) int {
	for i, v := range x {
		if !(v <= t) {
			return i
		}
	}
	return len(x)
}

// worse reports whether index a ranks after index b.
func worse(x []float32, a, b int32) bool {
	va, vb := x[a], x[b]
	switch {
	case va < vb:
		return true
	case va > vb:
		return false
	case va == vb:
		return a > b
	}
	nanA, nanB := va != va, vb != vb // at least one of them
	if nanA != nanB {
		return nanA
	}
	return a > b
}

func siftDown(h []int32, i int, x []float32) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && worse(x, h[c+1], h[c]) {
			c++
		}
		if !worse(x, h[c], h[i]) {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

//go:noinline
func panicTopK(k, n int) {
	panic("kernels: TopK: " + strconv.Itoa(k) + " wanted of " + strconv.Itoa(n) + " values")
}
