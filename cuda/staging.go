//go:build cuda

package cuda

import (
	"errors"
	"fmt"

	"sluice/cuda/driver"
	dev "sluice/cuda/kernels"
	"sluice/kernels"
)

// Pinned memory is the whole machine's: weights go through a few pieces of it, however large they are. One piece is
// filled while the ones before it are on their way.
const (
	stagePieces = 4
	stageBytes  = 4 << 20
)

// staging copies weights from any memory to the device, on a stream of its own, and rearranges those whose layout there
// is another one.
type staging struct {
	drv    *driver.Device
	stream *driver.Stream
	pieces []piece
	next   int
	note   string // what was done without; "": nothing

	raw     *driver.Mem // where a matrix lies that is about to be rearranged
	repacks map[repackKey]*driver.Program
	sent    int64 // bytes
}

type piece struct {
	pinned *driver.Pinned // nil: pageable
	bytes  []byte
	done   *driver.Event
	used   bool
}

type repackKey struct {
	typ        kernels.Type
	rows, cols int
}

func newStaging(drv *driver.Device) (_ *staging, err error) {
	g := &staging{drv: drv, repacks: map[repackKey]*driver.Program{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	if g.stream, err = drv.NewStream(); err != nil {
		return nil, err
	}
	for range stagePieces {
		p, err := drv.Pin(stageBytes, "staging of weights")
		var full *driver.NoMemoryError
		if errors.As(err, &full) {
			if len(g.pieces) == 0 {
				g.note = fmt.Sprintf("weights are copied from pageable memory, which is slower: %v", full)
				g.pieces = []piece{{bytes: make([]byte, stageBytes)}}
			}
			break
		}
		if err != nil {
			return nil, err
		}
		g.pieces = append(g.pieces, piece{pinned: p, bytes: p.Bytes})
		if g.pieces[len(g.pieces)-1].done, err = drv.NewEvent(); err != nil {
			return nil, err
		}
	}
	return g, nil
}

func (g *staging) close() error {
	if g == nil {
		return nil
	}
	var err error
	if g.stream != nil {
		err = g.stream.Sync()
	}
	for _, p := range g.pieces {
		if p.pinned != nil {
			err = errors.Join(err, p.pinned.Free())
		}
		if p.done != nil {
			err = errors.Join(err, p.done.Close())
		}
	}
	for _, p := range g.repacks {
		err = errors.Join(err, p.Close())
	}
	if g.raw != nil {
		err = errors.Join(err, g.raw.Free())
	}
	if g.stream != nil {
		err = errors.Join(err, g.stream.Close())
	}
	return err
}

// send copies src to dst in pieces. It returns when the last one is in pinned memory: src may go then, and dst is ready
// for what comes later in the stream.
func (g *staging) send(dst dev.Ptr, src []byte) error {
	g.sent += int64(len(src))
	for len(src) > 0 {
		p := &g.pieces[g.next]
		g.next = (g.next + 1) % len(g.pieces)
		if p.used {
			if err := p.done.Sync(); err != nil {
				return err
			}
		}
		n := copy(p.bytes, src)
		if err := g.put(p, dst, p.bytes[:n]); err != nil {
			return err
		}
		dst, src = dst.At(int64(n)), src[n:]
	}
	return nil
}

func (g *staging) put(p *piece, dst dev.Ptr, b []byte) error {
	if p.pinned == nil {
		// Not in the stream's order: what is in it may still read dst.
		return errors.Join(g.stream.Sync(), g.drv.Upload(dst, b))
	}
	if err := g.stream.CopyIn(dst, b); err != nil {
		return err
	}
	p.used = true
	return p.done.Record(g.stream)
}

// matrix copies a matrix in file layout to where kernels read it.
func (g *staging) matrix(t kernels.Type, dst dev.Ptr, rows, cols int, src []byte) error {
	if !dev.NeedsRepack(t) {
		return g.send(dst, src)
	}
	if err := g.reserve(int64(len(src))); err != nil {
		return err
	}
	if err := g.send(g.raw.Ptr, src); err != nil {
		return err
	}
	p, err := g.repack(t, rows, cols)
	if err != nil {
		return err
	}
	p.Set(0, 0, dst.Cell())
	p.Set(0, 1, g.raw.Ptr.Cell())
	return p.Run(g.stream, 0, 1)
}

// repack is the launch that rearranges matrices of a shape.
func (g *staging) repack(t kernels.Type, rows, cols int) (*driver.Program, error) {
	key := repackKey{t, rows, cols}
	if p, ok := g.repacks[key]; ok {
		return p, nil
	}
	p, err := g.drv.NewProgram([]dev.Launch{dev.Repack(t, 256, 512, rows, cols)})
	if err != nil {
		return nil, err
	}
	g.repacks[key] = p
	return p, nil
}

// prepare takes what copying such a matrix needs, so that none of it is taken while a stream waits for the copy: taking
// memory, and bringing a kernel's code to the device, may wait for the streams.
func (g *staging) prepare(t kernels.Type, rows, cols int) error {
	if !dev.NeedsRepack(t) {
		return nil
	}
	if _, err := g.repack(t, rows, cols); err != nil {
		return err
	}
	return g.reserve(int64(rows) * int64(t.RowBytes(cols)))
}

// reserve makes room for a matrix that is about to be rearranged.
func (g *staging) reserve(n int64) error {
	if g.raw != nil && g.raw.Bytes >= n {
		return nil
	}
	if err := g.trim(); err != nil {
		return err
	}
	m, err := g.drv.Alloc(n, "rearranging of weights")
	if err != nil {
		return err
	}
	g.raw = m
	return nil
}

// trim gives that room back, which after a model's dense weights is much larger than an expert needs.
func (g *staging) trim() error {
	if g.raw == nil {
		return nil
	}
	err := errors.Join(g.stream.Sync(), g.raw.Free())
	g.raw = nil
	return err
}
