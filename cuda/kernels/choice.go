package kernels

// ChoiceNextArg is ArgMaxNextArg of ChoiceCheck.
const ChoiceNextArg = 1

// ChoiceCheck follows ArgMaxStep over the same rows of n logits: where the greatest of them is infinite, the id in next and,
// if move is not 0, the row's token become -1, as for a NaN.
func ChoiceCheck(logits, next, move Ptr, rows, n int) Launch {
	checkRows("ChoiceCheck", rows, move)
	return Launch{
		Func:  "choice_check",
		Grid:  grid(ceil(rows, 32), 1),
		Block: [3]uint32{32, 1, 1},
		Args:  []uint64{logits.Cell(), next.Cell(), move.Cell(), I32(rows), I32(n)},
	}
}
