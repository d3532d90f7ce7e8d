package kernels

// ChoiceCheck follows ArgMaxStep over the same logits: where the greatest of them is infinite, step[StepNext] and, if ids
// is not 0, its element 0 become -1, as for a NaN.
func ChoiceCheck(logits, step, ids Ptr) Launch {
	return Launch{
		Func:  "choice_check",
		Grid:  grid(1, 1),
		Block: [3]uint32{32, 1, 1},
		Args:  []uint64{logits.Cell(), step.Cell(), ids.Cell()},
	}
}
