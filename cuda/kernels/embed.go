package kernels

import (
	"fmt"

	"sluice/kernels"
)

// Embed writes the embeddings of the tokens of count rows (Row) to out (float32, count x n): rows of the vocab x n matrix w,
// which lies on the device as in the file, whatever NeedsRepack says of its type. A token id outside 0..vocab-1 gives zeros
// and raises fault (WhereToken of layer 0). It panics unless Fits.
func Embed(t kernels.Type, out, w, rows, fault Ptr, count, n, vocab int) Launch {
	checkRows("Embed", count, rows)
	if !Fits(t, n) || vocab < 1 {
		panic(fmt.Sprintf("kernels: Embed: rows of %d from %d of type %v", n, vocab, t))
	}
	const threads = 256
	return Launch{
		Func:  "embed_" + suffix(t),
		Grid:  grid(ceil(n, threads), count),
		Block: [3]uint32{threads, 1, 1},
		Args: append([]uint64{out.Cell(), w.Cell(), rows.Cell(), I32(n), I32(vocab), I64(int64(t.RowBytes(n)))},
			Guard{Word: fault, Where: WhereToken}.cells()...),
	}
}
