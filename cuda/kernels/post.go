package kernels

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// PostBytes is the host memory of one message about up to nExpert experts.
func PostBytes(nExpert int) int64 { return 16 + 4*int64(nExpert) }

// PostSeqArg is the index of Post's sequence number among the arguments of its launch, for a program that is run again.
const PostSeqArg = 4

// Post describes the message to the host that names the experts with entries: message is the mapped address of
// PostBytes(NExpert) of pinned memory. The first word becomes seq when everything else is in place; the host waits for it
// with PostSeq and reads the rest with DecodePost before the stream goes on.
func (t Table) Post(message Ptr, seq uint32) Launch {
	return Launch{
		Func:  "post_needed",
		Grid:  grid(1, 1),
		Block: [3]uint32{32, 1, 1},
		Args:  []uint64{message.Cell(), t.Offsets.Cell(), t.Err.Cell(), I32(t.NExpert), I32(int(seq))},
	}
}

// PostSeq returns the sequence number of the message at b, which starts at a multiple of 4 as pinned memory does. What
// DecodePost reads after it belongs to that number.
func PostSeq(b []byte) uint32 { return atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[0]))) }

// DecodePost appends to ids the experts that the message at b names, ascending. It returns what Route has raised so far
// in the step, which is a *moe.LogitError with pos0 the position of row 0; or an error if the message names an expert
// that does not exist.
func DecodePost(b []byte, nExpert, pos0 int, ids []int32) ([]int32, error) {
	if int64(len(b)) < PostBytes(nExpert) {
		panic(fmt.Sprintf("kernels: message of %d bytes, want %d", len(b), PostBytes(nExpert)))
	}
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }
	if e := DecodeRouteError(uint64(word(3))<<32|uint64(word(2)), pos0); e != nil {
		return ids, e
	}
	n := word(1)
	if n > uint32(nExpert) {
		return ids, fmt.Errorf("kernels: message %d: %d experts, want up to %d", word(0), n, nExpert)
	}
	last := int32(-1)
	for i := range int(n) {
		id := int32(word(4 + i))
		if id <= last || int(id) >= nExpert {
			return ids, fmt.Errorf("kernels: message %d: expert %d after %d, want ascending ids below %d", word(0), id, last, nExpert)
		}
		ids, last = append(ids, id), id
	}
	return ids, nil
}
