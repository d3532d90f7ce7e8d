package kernels

import (
	"fmt"
	"math"

	"sluice/moe"
)

// sharedLimit is the dynamic shared memory that a block has without asking the driver for more, less what the kernels of
// the routing declare statically.
const sharedLimit = 48<<10 - 512

// routeShared is the shared memory of a row: probabilities, scores, weights, and two words a group.
func routeShared(r *moe.Router) int {
	words := (r.NExpert+3)&^3 + r.NExpert + r.NUsed
	if r.NGroup > 1 {
		words += 2 * r.NGroup
	}
	return 4 * words
}

// Routable says whether the device can follow a router that has passed its Validate. Every model in use does: the limit
// is the shared memory of a block, which holds moe.MaxExperts experts with up to 3968 of them used and no groups.
func Routable(r *moe.Router) error {
	if r.Gating > moe.GatingSigmoid {
		return fmt.Errorf("kernels: gating %s has no device kernel", r.Gating)
	}
	if b := routeShared(r); b > sharedLimit {
		return fmt.Errorf("kernels: router of %d experts, %d used, %d groups: a row takes %d bytes of shared memory, a block has %d",
			r.NExpert, r.NUsed, r.NGroup, b, sharedLimit)
	}
	return nil
}

// Route describes moe.Router's recipe over rows rows, one block each: logits (float32 rows x NExpert) to ids (int32) and
// weights (float32), both rows x NUsed in slot order. bias is the router's selection bias (float32 x NExpert), 0 exactly
// where r.Bias is nil. layer is for the error: a row of logits without an answer raises err (RouteErrorBytes, zeroed
// before the step), which DecodeRouteError reads; its ids are then 0 to NUsed-1 and its weights NaN.
func Route(r *moe.Router, ids, weights, err, logits, bias Ptr, layer, rows int) Launch {
	if e := Routable(r); e != nil {
		panic(e.Error())
	}
	if (bias == 0) != (r.Bias == nil) || layer < 0 || layer > routeMaxLayer || rows < 1 {
		panic(fmt.Sprintf("kernels: route %d rows of layer %d, bias at %#x for %d values", rows, layer, uint64(bias), len(r.Bias)))
	}
	norm := 0
	if r.Norm {
		norm = 1
	}
	return Launch{
		Func:   "route_rows",
		Grid:   grid(rows, 1),
		Block:  [3]uint32{uint32(min(256, (r.NExpert+31)&^31)), 1, 1},
		Shared: uint32(routeShared(r)),
		Args: []uint64{logits.Cell(), bias.Cell(), ids.Cell(), weights.Cell(), err.Cell(), I32(r.NExpert), I32(r.NUsed),
			I32(int(r.Gating)), I32(norm), F32(r.Scale), I32(r.NGroup), I32(r.NGroupUsed), I32(layer)},
	}
}

// RouteErrorBytes is the size of the error word that Route raises.
const RouteErrorBytes = 8

// The error word, high bits first: 44 bits with layer*2^32 + row inverted, so that the greatest word is the first row of
// the first layer; 16 bits of expert+1, 0 for a row without any; 4 bits of kind, never 0.
const (
	routeMaxLayer = 1<<12 - 1

	routeNaN       = 1
	routeInf       = 2
	routeAllNegInf = 3
)

// DecodeRouteError returns what Route raised, nil for the zero word: the first bad row of the first layer that had one.
// pos0 is the position of the call's row 0.
func DecodeRouteError(word uint64, pos0 int) *moe.LogitError {
	if word == 0 {
		return nil
	}
	place := ^(word >> 20) & (1<<44 - 1)
	e := &moe.LogitError{Layer: int(place >> 32), Position: pos0 + int(uint32(place)), Expert: int(word>>4&0xffff) - 1}
	switch word & 15 {
	case routeNaN:
		e.Value = float32(math.NaN())
	case routeInf:
		e.Value = float32(math.Inf(1))
	default:
		e.Value = float32(math.Inf(-1))
	}
	return e
}
