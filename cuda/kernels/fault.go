package kernels

import (
	"fmt"
	"math"
)

// Where says what put a row wrong. The values are in the order in which a layer's steps run.
type Where int

const (
	WhereToken     Where = iota // the row's token id is outside the vocabulary
	WhereEmbedding              // the token's embedding is not finite
	WherePosition               // the row's position is outside the key/value cache
	WhereAttention              // the residual stream after attention is not finite
	WhereExperts                // the residual stream after the experts is not finite
)

// String returns what is wrong, as a part of a sentence.
func (w Where) String() string {
	switch w {
	case WhereToken:
		return "the token id is outside the vocabulary"
	case WhereEmbedding:
		return "the token's embedding is not finite"
	case WherePosition:
		return "the position is outside the key/value cache"
	case WhereAttention:
		return "the attention output is not finite"
	case WhereExperts:
		return "the expert output is not finite"
	}
	return fmt.Sprintf("where(%d)", int(w))
}

// FaultBytes is the size of a fault word: a uint64 on the device, zeroed before use and read with ReadFault. Kernels that
// take one accept 0 for none. It keeps the earliest fault by (layer, where), then the lowest row, until it is zeroed.
const FaultBytes = 8

// Fault is what a fault word holds.
type Fault struct {
	Layer int
	Where Where
	Row   int // of the call
}

// ReadFault decodes a fault word. ok is false where nothing is wrong.
func ReadFault(word uint64) (f Fault, ok bool) {
	if word == 0 {
		return Fault{}, false
	}
	word = ^word
	order := int(word >> 32)
	return Fault{Layer: order / 8, Where: Where(order % 8), Row: int(uint32(word))}, true
}

// Guard names the step after which rows are looked at, and the fault word that a row which is not finite goes to. The zero
// value looks at nothing.
type Guard struct {
	Word  Ptr
	Layer int
	Where Where
}

// cells are the two parameters that a guard becomes.
func (g Guard) cells() []uint64 { return []uint64{g.Word.Cell(), uint64(faultOrder(g.Layer, g.Where))} }

func faultOrder(layer int, where Where) uint32 {
	if layer < 0 || layer > math.MaxInt32/8 || where < 0 || where > WhereExperts {
		panic(fmt.Sprintf("kernels: fault of layer %d, where %d", layer, int(where)))
	}
	return uint32(8*layer + int(where))
}
