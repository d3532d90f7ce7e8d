package engine

// kvCache holds keys (after the rotary embedding) and values of every position. Layout per layer:
// nKVHead x ctx x headDim, so that one head's positions are contiguous for the attention kernel.
// Memory is taken at creation, but the system backs it with pages only as positions are written.
type kvCache struct {
	nKV, ctx, hd int
	k16, v16     [][]uint16 // per layer, IEEE half floats; nil when f32
	k32, v32     [][]float32
}

func newKVCache(m *Model, ctx int, f32 bool) kvCache {
	c := kvCache{nKV: m.NKVHead, ctx: ctx, hd: m.HeadDim}
	n := c.nKV * ctx * c.hd
	for range m.NLayer {
		if f32 {
			c.k32 = append(c.k32, make([]float32, n))
			c.v32 = append(c.v32, make([]float32, n))
		} else {
			c.k16 = append(c.k16, make([]uint16, n))
			c.v16 = append(c.v16, make([]uint16, n))
		}
	}
	return c
}

func (c *kvCache) bytes() int64 {
	per := int64(c.nKV) * int64(c.ctx) * int64(c.hd) * 2
	return per*2*int64(len(c.k16)) + per*4*int64(len(c.k32))
}

// at is the index of a head's row at a position.
func (c *kvCache) at(head, pos int) int { return (head*c.ctx + pos) * c.hd }

// KVBytes is the memory that the key/value cache of a session with this configuration takes.
func (m *Model) KVBytes(c SessionConfig) int64 {
	if c.Ctx == 0 {
		c.Ctx = min(m.NCtxTrain, defaultCtx)
	}
	size := int64(2)
	if c.KV == "f32" {
		size = 4
	}
	return 2 * size * int64(m.NLayer) * int64(m.NKVHead) * int64(c.Ctx) * int64(m.HeadDim)
}
