package kernels

import "fmt"

// PtrRowBytes is the size of a layer's row in the table of expert pointers: three addresses an expert, gate, up and down;
// 0 where the expert is not on the device.
func PtrRowBytes(nExpert int) int64 { return 24 * int64(nExpert) }

// The indices of Publish's arguments, for a program that is run again.
const (
	PublishEntryArg = iota // the address of the row plus 24 an expert
	PublishGateArg
	PublishUpArg
	PublishDownArg
)

// Publish describes the writing of an expert's entry in the table of pointers, as part of a stream's work.
func Publish(entry, gate, up, down Ptr) Launch {
	return Launch{
		Func:  "slots_publish",
		Grid:  grid(1, 1),
		Block: [3]uint32{32, 1, 1},
		Args:  []uint64{entry.Cell(), gate.Cell(), up.Cell(), down.Cell()},
	}
}

// ReleaseSeqArg is the index of Release's value among the arguments of its launch.
const ReleaseSeqArg = 4

// Release describes the raising of the word flag to seq where every expert with entries has its pointers in the row ptrs.
// The stream waits for that value next.
func (t Table) Release(flag, ptrs Ptr, seq uint32) Launch {
	return Launch{
		Func:  "slots_release",
		Grid:  grid(1, 1),
		Block: [3]uint32{32, 1, 1},
		Args:  []uint64{flag.Cell(), t.Offsets.Cell(), ptrs.Cell(), I32(t.NExpert), I32(int(seq))},
	}
}

// Tally describes the adding of bytes for each expert with entries to the int64 at total.
func (t Table) Tally(total Ptr, bytes int64) Launch {
	if bytes < 0 {
		panic(fmt.Sprintf("kernels: tally of %d bytes an expert", bytes))
	}
	return Launch{
		Func:  "slots_tally",
		Grid:  grid(1, 1),
		Block: [3]uint32{32, 1, 1},
		Args:  []uint64{total.Cell(), t.Offsets.Cell(), I32(t.NExpert), I64(bytes)},
	}
}
