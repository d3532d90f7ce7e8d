package kernels

// Exp describes y = kernels.Exp(x) over n float32 values, for checks of the recipe that Route follows; no forward pass
// runs it.
func Exp(y, x Ptr, n int) Launch {
	const threads = 256
	return Launch{
		Func:  "recipe_exp",
		Grid:  grid(ceil(n, threads), 1),
		Block: [3]uint32{threads, 1, 1},
		Args:  []uint64{y.Cell(), x.Cell(), I32(n)},
	}
}
