//go:build cuda

package cuda

import (
	"encoding/binary"

	dev "sluice/cuda/kernels"
	"sluice/engine/model"
)

// status is what the device is told of a pass, and what it says of it: one block of its memory, with a copy in pinned
// memory. The first part comes back to the host, up to the ids that were chosen; the rest is sent to the device, from
// where it first differs up to the last row.
type status struct {
	tables int64 // of the sequences, see pool
	pieces int64 // of chunks: Piece
	single int64 // int32: rows that are the only one of their sequence
	wanted int64 // int32: rows whose logits are wanted
	rows   int64 // Row
	bytes  int64
}

const (
	faultAt = 0
	routeAt = 8
	nextAt  = 16 // int32: the ids that were chosen, in the order of wanted
)

func layStatus(c *model.Config) (s status) {
	at := int64(nextAt)
	place := func(p *int64, bytes int64) {
		at = (at + 255) &^ 255
		*p = at
		at += bytes
	}
	at += 4 * int64(c.Seqs)
	place(&s.tables, tableBytes(c))
	place(&s.pieces, dev.PieceBytes*int64(c.Batch))
	place(&s.single, 4*int64(c.Seqs))
	place(&s.wanted, 4*int64(c.Seqs))
	place(&s.rows, dev.RowBytes*int64(c.Batch))
	s.bytes = at
	return s
}

// pass is the one that runs.
type pass struct {
	*model.Pass
	alone  bool  // every sequence has one row
	want   []int // by span: its place among the wanted rows, -1: it wants nothing
	wanted int   // rows whose logits are wanted
	logits bool  // of some of them the logits come to the host
	single int   // rows of attention's launch over single rows
	pieces int   // of that over chunks
}

// begin takes a pass in.
func (p *pass) begin(of *model.Pass) {
	p.Pass, p.alone, p.wanted, p.logits, p.want = of, len(of.Spans) == len(of.IDs), 0, false, p.want[:0]
	for i := range of.Spans {
		at := -1
		if h := of.Spans[i].Head; h != model.HeadNone {
			at = p.wanted
			p.wanted++
			p.logits = p.logits || h == model.HeadLogits
		}
		p.want = append(p.want, at)
	}
}

// proven says whether the ids are their own proof: every row's is one, and is no number where anything went wrong with it.
func (p *pass) proven() bool { return p.alone && p.wanted == len(p.IDs) }

// moves says whether the device makes the pass's rows those of the next step.
func (p *pass) moves() bool { return p.proven() && p.wanted <= headRows }

// position is a row's, for messages.
func (p *pass) position(row int) int { return int(p.Rows[row].Step) }

// place tells the device what the pass is, as far as the last one has not left it there.
func (w *walk) place() error {
	p, at, b := &w.pass, &w.at, w.pin.status.Bytes
	if w.dirty {
		if err := w.compute.Zero(w.b.status, nextAt); err != nil {
			return err
		}
		w.dirty, w.moved = false, w.moved[:0]
	}
	from := at.rows + int64(dev.RowBytes*w.n)
	if w.pool.dirty < len(w.pool.tables) {
		from, w.pool.dirty = at.tables+int64(w.pool.dirty), len(w.pool.tables)
	}
	if !p.alone {
		from = min(from, at.pieces)
		w.placeChunks(b[at.pieces:], b[at.single:])
	}
	if !p.moves() && p.wanted > 0 {
		from = min(from, at.wanted)
		for i, to := range p.want {
			if s := &p.Spans[i]; to >= 0 {
				binary.LittleEndian.PutUint32(b[at.wanted+4*int64(to):], uint32(s.From+s.N-1))
			}
		}
	}
	same := len(w.moved) == w.n && p.alone
	for i := range p.Spans {
		s := &p.Spans[i]
		r := dev.Row{Table: s.State.(*state).table, Pos: s.State.Len()}
		for j := s.From; j < s.From+s.N; j++ {
			r.Token, r.Exempt = int(p.IDs[j]), p.Exempt != nil && p.Exempt[j]
			dev.PutRow(b[at.rows+int64(dev.RowBytes*j):], r)
			same = same && w.moved[j] == r
			r.Pos++
		}
	}
	if !same {
		from = min(from, at.rows)
	}
	to := at.rows + int64(dev.RowBytes*w.n)
	if w.moved = w.moved[:0]; from == to {
		return nil
	}
	return w.compute.CopyIn(w.b.status.At(from), b[from:to])
}

// placeChunks lists what attention takes row by row and what in pieces, and says so to its launches.
func (w *walk) placeChunks(pieces, single []byte) {
	p, h := &w.pass, &w.m.Hparams
	p.single, p.pieces = 0, 0
	most := dev.PieceRows(h.NHead, h.NKVHead, h.HeadDim)
	for i := range p.Spans {
		s := &p.Spans[i]
		if s.N == 1 {
			binary.LittleEndian.PutUint32(single[4*p.single:], uint32(s.From))
			p.single++
			continue
		}
		for j := 0; j < s.N; j += most {
			dev.PutPiece(pieces[dev.PieceBytes*p.pieces:], dev.Piece{First: s.From + j, Rows: min(most, s.N-j)})
			p.pieces++
		}
	}
}

// moveOn notes that the device has made its rows those of the next step.
func (w *walk) moveOn() {
	p := &w.pass
	for i := range p.Spans {
		w.moved = append(w.moved, dev.Row{Table: p.Spans[i].State.(*state).table, Pos: p.position(i) + 1, Token: int(w.chosen(i)),
			Exempt: p.Exempt != nil && p.Exempt[i]})
	}
}
