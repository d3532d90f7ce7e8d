package kernels

import "fmt"

const (
	argMaxThreads = 256
	argMaxParts   = 128 // blocks of the first stage at most, a row
	argMaxStretch = 2048
)

// ArgMaxScratch is the size in bytes of the scratch of ArgMaxPart and ArgMaxStep for a row.
const ArgMaxScratch = 8 * argMaxParts

// argMaxShape cuts n values into parts of stretch.
func argMaxShape(rows, n int) (parts, stretch int) {
	if n < 1 || n > 1<<30 || rows < 1 {
		panic(fmt.Sprintf("kernels: ArgMax of %d rows of %d values", rows, n))
	}
	stretch = max(argMaxStretch, ceil(n, argMaxParts))
	return ceil(n, stretch), stretch
}

// ArgMaxPart is the first stage of the arg max of each of rows rows of n float32 values at x; ArgMaxStep must follow with the
// same scratch (rows x ArgMaxScratch), rows and n.
func ArgMaxPart(scratch, x Ptr, rows, n int) Launch {
	parts, stretch := argMaxShape(rows, n)
	return Launch{
		Func:  "argmax_part",
		Grid:  grid(parts, rows),
		Block: [3]uint32{argMaxThreads, 1, 1},
		Args:  []uint64{scratch.Cell(), x.Cell(), I32(n), I32(stretch)},
	}
}

// ArgMaxNextArg is the index of ArgMaxStep's next among the arguments of its launch, for a program that is run again.
const ArgMaxNextArg = 2

// ArgMaxStep writes to next (int32, rows) the index of the first largest of the n values of each row that ArgMaxPart went
// through, -1 where one was a NaN. Where move is not 0, the rows (Row) there become those of the next step: a position
// further, with that token.
func ArgMaxStep(scratch, next, move Ptr, rows, n int) Launch {
	parts, _ := argMaxShape(rows, n)
	checkRows("ArgMaxStep", rows, move)
	return Launch{
		Func:  "argmax_step",
		Grid:  grid(rows, 1),
		Block: [3]uint32{argMaxParts, 1, 1},
		Args:  []uint64{scratch.Cell(), I32(parts), next.Cell(), move.Cell()},
	}
}
