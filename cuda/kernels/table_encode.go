package kernels

import (
	"encoding/binary"
	"fmt"
	"math"

	"sluice/moe"
)

// EncodedBytes is the part of the table, from Offsets on, that Encode fills for the kernels of the experts: everything up
// to Dropped.
func (t Table) EncodedBytes() int64 { return int64(t.Dropped - t.Offsets) }

// Encode writes what DropTable would have left from Offsets to Tiles, for a table that was built on the host over rows
// rows. dst has EncodedBytes; what the layout leaves free in it is not written. It allocates nothing.
func (t Table) Encode(dst []byte, host *moe.Table, rows int) {
	slots, kept := rows*t.K, len(host.Token)
	if rows < 1 || rows > t.MaxT || len(host.Offsets) != t.NExpert+1 || kept > slots || int64(len(dst)) != t.EncodedBytes() {
		panic(fmt.Sprintf("kernels: encode a table of %d rows, %d experts, %d entries into %d bytes", rows, len(host.Offsets)-1, kept, len(dst)))
	}
	put := func(p Ptr, i int, v int32) { binary.LittleEndian.PutUint32(dst[int(p-t.Offsets)+4*i:], uint32(v)) }
	get := func(p Ptr, i int) int32 { return int32(binary.LittleEndian.Uint32(dst[int(p-t.Offsets)+4*i:])) }
	for i := range slots {
		put(t.ExpertOf, i, -1)
		put(t.EntryOf, i, -1)
	}
	put(t.Offsets, 0, 0)
	tiles := 0
	for e := range t.NExpert {
		lo, hi := int(host.Offsets[e]), int(host.Offsets[e+1])
		put(t.Offsets, e+1, int32(hi))
		for i := lo; i < hi; i++ {
			row := int(host.Token[i])
			put(t.Token, i, int32(row))
			put(t.Weight, i, int32(math.Float32bits(host.Weight[i])))
			put(t.ExpertOf, i, int32(e))
			at := row * t.K // experts ascend, so the row's entries do
			for get(t.EntryOf, at) >= 0 {
				at++
			}
			put(t.EntryOf, at, int32(i))
			if (i-lo)%TileCols == 0 {
				put(t.Tiles, 3*tiles, int32(e))
				put(t.Tiles, 3*tiles+1, int32(i))
				put(t.Tiles, 3*tiles+2, int32(min(TileCols, hi-i)))
				tiles++
			}
		}
	}
	put(t.NTiles, 0, int32(tiles))
}
