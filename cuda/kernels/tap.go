package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Tap is where the slots of a step's layer calls lie on the device, as routed: ids int32 [Layers][MaxT*K], then weights
// float32 [Layers][MaxT*K], without a gap, so that one copy of TapBytes brings the step back. Route writes there and
// DropTable reads, armed dump or not; a step that nobody taps can do with one layer.
type Tap struct {
	Layers, K, MaxT int
	Base            Ptr
}

// Bytes returns the device memory of the tap, and the length of the copy.
func (t Tap) Bytes() int64 { return 8 * int64(t.Layers) * int64(t.MaxT) * int64(t.K) }

// IDs returns the address of layer's ids.
func (t Tap) IDs(layer int) Ptr {
	return t.Base.At(4 * int64(t.MaxT) * int64(t.K) * int64(t.at(layer)))
}

// Weights returns the address of layer's weights.
func (t Tap) Weights(layer int) Ptr { return t.IDs(layer).At(t.Bytes() / 2) }

func (t Tap) at(layer int) int {
	if layer < 0 || layer >= t.Layers {
		panic(fmt.Sprintf("kernels: tap of layer %d, has %d", layer, t.Layers))
	}
	return layer
}

// Decode reads one layer's rows out of a copy of the tap into expert and weight (rows x K each). An id outside 0 to
// nExpert-1 is an error: nothing may index with it.
func (t Tap) Decode(b []byte, layer, rows, nExpert int, expert []int32, weight []float32) error {
	if int64(len(b)) != t.Bytes() || rows > t.MaxT {
		panic(fmt.Sprintf("kernels: tap of %d bytes, %d rows, want %d bytes, up to %d rows", len(b), rows, t.Bytes(), t.MaxT))
	}
	ids := b[t.IDs(layer)-t.Base:]
	weights := b[t.Weights(layer)-t.Base:]
	for i := range rows * t.K {
		id := int32(binary.LittleEndian.Uint32(ids[4*i:]))
		if id < 0 || int(id) >= nExpert {
			return fmt.Errorf("kernels: tap: layer %d: row %d slot %d: expert %d, want 0 to %d", layer, i/t.K, i%t.K, id, nExpert-1)
		}
		expert[i], weight[i] = id, math.Float32frombits(binary.LittleEndian.Uint32(weights[4*i:]))
	}
	return nil
}
