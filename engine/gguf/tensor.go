package gguf

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"sluice/kernels"
)

// maxDims is the largest number of dimensions that ggml has.
const maxDims = 4

// minTensorInfo is the smallest tensor info: a name of one byte, one dimension.
const minTensorInfo = 8 + 1 + 4 + 8 + 4 + 8

// Tensor describes one tensor. It belongs to its File and is not to be changed.
type Tensor struct {
	Name   string
	Type   kernels.Type // a type that ggml has; Type.Supported says whether there are kernels for it
	Dims   []uint64     // 1 to 4, none zero, in ggml's order: Dims[0] is the row length
	Shard  int          // index into File.Shards
	Offset int64        // of the data, in bytes from the start of its shard's file
	Size   int64        // of the data in bytes

	data []byte
	file string // for messages about duplicates
	idx  int    // position among its file's tensors
	pos  int64  // of its info in its file
}

// Data returns the tensor's bytes in file layout: a read-only view into the mapping, valid until the File is closed, nil
// afterwards. Writing to it faults. Concurrent calls are allowed, but not while the File is being closed.
func (t *Tensor) Data() []byte { return t.data }

// Rows returns the product of all dimensions but the first.
func (t *Tensor) Rows() int {
	n := 1
	for _, d := range t.Dims[1:] {
		n *= int(d)
	}
	return n
}

// tensorSize returns the byte size of a tensor, with every product checked: block counts times block size wrap around just as
// element counts do.
func tensorSize(t kernels.Type, dims []uint64) (uint64, error) {
	if len(dims) == 0 || len(dims) > maxDims {
		return 0, fmt.Errorf("%d dimensions, want 1 to %d", len(dims), maxDims)
	}
	block := uint64(t.BlockLen())
	if block == 0 {
		return 0, fmt.Errorf("unknown tensor type %d (%s)", uint32(t), t)
	}
	elems := uint64(1)
	for i, d := range dims {
		if d == 0 {
			return 0, fmt.Errorf("dimension %d of %v is 0", i, dims)
		}
		hi, lo := bits.Mul64(elems, d)
		if hi != 0 || lo > math.MaxInt64 {
			return 0, fmt.Errorf("dimensions %v have more than 2^63-1 elements", dims)
		}
		elems = lo
	}
	if dims[0]%block != 0 {
		return 0, fmt.Errorf("row length %d is not a multiple of the %d of a %s block", dims[0], block, t)
	}
	hi, size := bits.Mul64(elems/block, uint64(t.BlockBytes()))
	if hi != 0 || size > math.MaxInt64 {
		return 0, fmt.Errorf("%s of dimensions %v has more than 2^63-1 bytes", t, dims)
	}
	return size, nil
}

// alignUp rounds n up to a multiple of align, a power of two; ok is false when the result does not fit.
func alignUp(n, align uint64) (up uint64, ok bool) {
	up = (n + align - 1) &^ (align - 1)
	return up, up >= n
}

// readTensors reads the tensor infos of one file, which follow the keys, and places each tensor. Names are entered into
// byName, which holds those of the shards before.
func (h *header) readTensors(shard int, byName map[string]*Tensor) ([]*Tensor, error) {
	c := &h.cur
	var ts []*Tensor // grows with the infos that are really there, not by the count
	for i := 0; uint64(i) < h.nTensors; i++ {
		c.begin("tensor", i)
		t := &Tensor{Shard: shard, file: c.file, idx: i, pos: int64(c.off)}
		t.Name = c.recordName()
		nDims := c.u32("dimension count")
		if c.err == nil && (nDims == 0 || nDims > maxDims) {
			c.fail(c.off-4, "%d dimensions, want 1 to %d", nDims, maxDims)
		}
		if c.err != nil {
			return nil, c.err
		}
		t.Dims = make([]uint64, nDims)
		for j := range t.Dims {
			t.Dims[j] = c.u64("dimension")
		}
		t.Type = kernels.Type(c.u32("tensor type"))
		off := c.u64("data offset")
		if c.err != nil {
			return nil, c.err
		}
		size, err := tensorSize(t.Type, t.Dims)
		if err != nil {
			c.fail(int(t.pos), "%v", err)
		}
		if off%h.align != 0 {
			c.fail(c.off-8, "data offset %#x is not a multiple of the alignment %d", off, h.align)
		}
		if off > math.MaxInt64 {
			c.fail(c.off-8, "data offset %#x past file size %#x", off, len(c.b))
		}
		if other := byName[t.Name]; other != nil {
			c.fail(int(t.pos), "duplicate name, also tensor %d of %s at %#x", other.idx, other.file, other.pos)
		}
		if c.err != nil {
			return nil, c.err
		}
		t.Offset, t.Size = int64(off), int64(size)
		byName[t.Name] = t
		ts = append(ts, t)
	}
	if len(ts) == 0 {
		return nil, nil
	}
	return ts, h.place(ts)
}

// place turns data offsets into file offsets and checks that every tensor lies inside the file and on no other one.
func (h *header) place(ts []*Tensor) error {
	c := &h.cur
	fileSize := uint64(len(c.b))
	c.kind, c.name = "", ""
	start, ok := alignUp(uint64(c.off), h.align)
	if !ok || start > fileSize {
		c.fail(c.off, "tensor data, aligned to %d, starts past file size %#x", h.align, fileSize)
		return c.err
	}
	for _, t := range ts {
		c.begin("tensor", t.idx)
		c.name = t.Name
		// Offset and Size are below 2^63 and start is at most the file size, so neither sum wraps as uint64 before it is
		// compared with what is left.
		room := fileSize - start
		if uint64(t.Offset) > room || uint64(t.Size) > room-uint64(t.Offset) {
			c.fail(int(t.pos), "end %s past file size %#x", sumText(start, uint64(t.Offset), uint64(t.Size)), fileSize)
			return c.err
		}
		t.Offset += int64(start)
		t.data = c.b[t.Offset : t.Offset+t.Size : t.Offset+t.Size]
	}
	order := slices.Clone(ts)
	slices.SortStableFunc(order, func(a, b *Tensor) int {
		if a.Offset < b.Offset {
			return -1
		} else if a.Offset > b.Offset {
			return 1
		}
		return 0
	})
	for i, t := range order[1:] {
		if prev := order[i]; prev.Offset+prev.Size > t.Offset {
			c.begin("tensor", t.idx)
			c.name = t.Name
			c.fail(int(t.pos), "data %#x..%#x overlaps tensor %d %q at %#x..%#x",
				t.Offset, t.Offset+t.Size, prev.idx, prev.Name, prev.Offset, prev.Offset+prev.Size)
			return c.err
		}
	}
	return nil
}

// sumText formats a+b+c, also where the sum does not fit 64 bits.
func sumText(a, b, c uint64) string {
	s, carry1 := bits.Add64(a, b, 0)
	s, carry2 := bits.Add64(s, c, 0)
	if carry1+carry2 != 0 {
		return fmt.Sprintf("%#x%016x", carry1+carry2, s)
	}
	return fmt.Sprintf("%#x", s)
}
