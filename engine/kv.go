package engine

import "sluice/kernels"

// kvCache holds keys (after the rotary embedding) and values of every position. Layout per layer:
// nKVHead x ctx x headDim, so that one head's positions are contiguous for the attention kernel.
// Memory is taken at creation, but the system backs it with pages only as positions are written. Of
// the three pairs of fields one is set.
type kvCache struct {
	nKV, ctx, hd int
	k16, v16     [][]uint16 // per layer
	k32, v32     [][]float32
	k8, v8       []kernels.Q8
}

func newKVCache(m *Model, ctx int, typ string) kvCache {
	c := kvCache{nKV: m.NKVHead, ctx: ctx, hd: m.HeadDim}
	n := c.nKV * ctx * c.hd
	for range m.NLayer {
		switch typ {
		case "f32":
			c.k32 = append(c.k32, make([]float32, n))
			c.v32 = append(c.v32, make([]float32, n))
		case "q8_0":
			c.k8 = append(c.k8, kernels.Q8{Q: make([]int8, n), D: make([]float32, n/32)})
			c.v8 = append(c.v8, kernels.Q8{Q: make([]int8, n), D: make([]float32, n/32)})
		default:
			c.k16 = append(c.k16, make([]uint16, n))
			c.v16 = append(c.v16, make([]uint16, n))
		}
	}
	return c
}

// checkKV refuses a type that is unknown or does not fit the model's heads.
func checkKV(m *Model, typ string) error {
	switch typ {
	case "f16", "f32":
		return nil
	case "q8_0":
		if m.HeadDim%32 != 0 {
			return settingf("kv type q8_0: heads of %d are no multiple of its block of 32: want f16 or f32", m.HeadDim)
		}
		return nil
	}
	return settingf("kv type %q: want f16, f32 or q8_0", typ)
}

// at is the index of a head's row at a position.
func (c *kvCache) at(head, pos int) int { return (head*c.ctx + pos) * c.hd }

// KVBytes is the memory that the key/value cache of a session with this configuration takes.
func (m *Model) KVBytes(c SessionConfig) int64 {
	if c.Ctx == 0 {
		c.Ctx = min(m.NCtxTrain, DefaultCtx)
	}
	values := 2 * int64(m.NLayer) * int64(m.NKVHead) * int64(c.Ctx) * int64(m.HeadDim)
	switch c.KV {
	case "f32":
		return 4 * values
	case "q8_0":
		return values + values/32*4
	}
	return 2 * values
}
