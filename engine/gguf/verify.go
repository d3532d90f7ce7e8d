package gguf

import (
	"bytes"
	"fmt"
	"io"
	"math"

	"sluice/kernels"
)

// TensorCheck is what Verify found out about one tensor.
type TensorCheck struct {
	Tensor *Tensor
	// Checked is false for a type without kernels: its bytes were read but its values not looked at.
	Checked   bool
	NonFinite int64   // values that are NaN or infinite; a bad block scale counts once per value it spoils
	First     int64   // element index of the first such value, -1 when there is none
	FirstVal  float32 // and the value
}

// verifyChunk is about how many bytes of a tensor are looked at in one go.
const verifyChunk = 1 << 18

// Verify reads every byte of every tensor of every shard and looks for values that are not finite, in plain floats as in block
// scales, which show once dequantised. (Structure was checked on opening; there is no file that opens and is malformed.) It
// reads through the files rather than the mapping, so that a file cut short meanwhile is an error and not a fault.
//
// report is called once per tensor, in order, and may be nil; an error from it ends the check and is returned. The result is
// an error when a read failed or any value was not finite. It needs about 2 MB.
func (f *File) Verify(report func(TensorCheck) error) error {
	if f.closed {
		return formatErr(f.name, -1, "verify: file is closed")
	}
	var bad int
	var first TensorCheck
	raw := make([]byte, verifyChunk)
	var vals []float32
	for _, t := range f.tensors {
		shard := f.shards[t.Shard]
		var src io.ReaderAt = bytes.NewReader(shard.Data)
		if shard.File != nil {
			src = shard.File
		}
		c := TensorCheck{Tensor: t, Checked: t.Type.Supported(), First: -1}
		// Whole blocks per chunk. A block is far smaller than a chunk.
		blocks := verifyChunk / t.Type.BlockBytes()
		step, elems := blocks*t.Type.BlockBytes(), blocks*t.Type.BlockLen()
		if c.Checked && len(vals) < elems {
			vals = make([]float32, elems)
		}
		for off := int64(0); off < t.Size; off += int64(step) {
			n := int(min(int64(step), t.Size-off))
			if got, err := src.ReadAt(raw[:n], t.Offset+off); got < n {
				return fmt.Errorf("gguf: %s: tensor %q: %d of %d bytes at %#x read: %w", t.file, t.Name, got, n, t.Offset+off, err)
			}
			if !c.Checked {
				continue
			}
			m := n / t.Type.BlockBytes() * t.Type.BlockLen()
			kernels.Dequantize(t.Type, vals[:m], raw[:n])
			c.scan(vals[:m], off/int64(t.Type.BlockBytes())*int64(t.Type.BlockLen()))
		}
		if c.NonFinite > 0 {
			if bad == 0 {
				first = c
			}
			bad++
		}
		if report != nil {
			if err := report(c); err != nil {
				return err
			}
		}
	}
	if bad > 0 {
		t := first.Tensor
		return formatErr(t.file, t.Offset, "tensor %q (%s): element %d is %v, %d values not finite; %d such tensors in all",
			t.Name, t.Type, first.First, first.FirstVal, first.NonFinite, bad)
	}
	return nil
}

// scan counts the values that are not finite; base is the element index of the first.
func (c *TensorCheck) scan(vals []float32, base int64) {
	for i, v := range vals {
		if math.Float32bits(v)&0x7f800000 != 0x7f800000 {
			continue
		}
		if c.NonFinite == 0 {
			c.First, c.FirstVal = base+int64(i), v
		}
		c.NonFinite++
	}
}
