package kernels

import "fmt"

// The step state: StepLen int32 on the device, which kernels read what changes from token to token from, so that a captured
// graph needs no new arguments.
const (
	StepPos   = 0 // position of the call's row 0
	StepRows  = 1 // rows of the call
	StepNext  = 2 // the id that ArgMaxStep chose, -1 where a logit was NaN
	StepCount = 3 // ids that ArgMaxStep has put into the ring

	StepLen   = 8
	StepBytes = 4 * StepLen
)

const (
	argMaxThreads = 256
	argMaxParts   = 128 // blocks of the first stage at most
	argMaxStretch = 2048
)

// ArgMaxScratch is the size in bytes of the scratch of ArgMaxPart and ArgMaxStep.
const ArgMaxScratch = 8 * argMaxParts

// argMaxShape cuts n values into parts of stretch.
func argMaxShape(n int) (parts, stretch int) {
	if n < 1 || n > 1<<30 {
		panic(fmt.Sprintf("kernels: ArgMax of %d values", n))
	}
	stretch = max(argMaxStretch, ceil(n, argMaxParts))
	return ceil(n, stretch), stretch
}

// ArgMaxPart is the first stage of the arg max of the n float32 values at x; ArgMaxStep must follow with the same scratch
// and n.
func ArgMaxPart(scratch, x Ptr, n int) Launch {
	parts, stretch := argMaxShape(n)
	return Launch{
		Func:  "argmax_part",
		Grid:  grid(parts, 1),
		Block: [3]uint32{argMaxThreads, 1, 1},
		Args:  []uint64{scratch.Cell(), x.Cell(), I32(n), I32(stretch)},
	}
}

// Chosen says what ArgMaxStep does with the id it found, beside writing it to step[StepNext].
type Chosen struct {
	IDs     Ptr // int32: the id becomes element 0, the next step's token; 0: not
	Advance int // added to step[StepPos]
	Ring    Ptr // int32 [RingLen]: the id goes to element step[StepCount] modulo RingLen, and the count grows; 0: not
	RingLen int
}

// ArgMaxStep finds the index of the first largest of the n values that ArgMaxPart went through, -1 where one was a NaN.
func ArgMaxStep(scratch, step Ptr, n int, c Chosen) Launch {
	parts, _ := argMaxShape(n)
	if c.Ring != 0 && c.RingLen < 1 {
		panic(fmt.Sprintf("kernels: ArgMaxStep: ring of %d ids", c.RingLen))
	}
	return Launch{
		Func:  "argmax_step",
		Grid:  grid(1, 1),
		Block: [3]uint32{argMaxParts, 1, 1},
		Args:  []uint64{scratch.Cell(), I32(parts), step.Cell(), c.IDs.Cell(), I32(c.Advance), c.Ring.Cell(), I32(c.RingLen)},
	}
}
