package roofline

import (
	"errors"
	"fmt"
	"io"

	"sluice/dump"
)

// How Measured routing forms a batch of B from one stream of tokens.
const (
	// Spread takes tokens that stand far apart, evenly over the stream: what unrelated sequences decoding together touch.
	Spread = "spread"
	// Consecutive takes neighbours: what a chunk of a prompt, or the tokens of a verified draft, touch.
	Consecutive = "consecutive"
)

// maxDumpSlots bounds the memory of a dump: 512 MiB of ids.
const maxDumpSlots = 1 << 28

// MeasuredRouting is the routing that a selection dump holds. It is read-only after ReadRouting.
type MeasuredRouting struct {
	Notes []string // a torn end

	name    string
	order   string
	experts int
	layers  map[int]*selections
	largest int // tokens of the layer that has fewest
}

// selections are one layer's tokens in the order of the dump.
type selections struct {
	ids    []uint16
	starts []int // token i has ids[starts[i]:starts[i+1]]
}

func (s *selections) tokens() int { return len(s.starts) - 1 }

// ReadRouting reads a selection dump of a model with the layers and experts of w; name goes into Name. order is Spread or
// Consecutive. A layer of w without a record, a layer that w does not have and an expert out of range are errors; a torn
// end is a note, and what is whole before it counts.
func ReadRouting(r io.Reader, name, order string, w *Weights) (*MeasuredRouting, error) {
	if order != Spread && order != Consecutive {
		return nil, fmt.Errorf("roofline: batches of %q tokens, want %s or %s", order, Spread, Consecutive)
	}
	if err := w.check(); err != nil {
		return nil, err
	}
	m := &MeasuredRouting{name: name, order: order, experts: w.Experts, layers: map[int]*selections{}}
	for _, l := range w.Layers {
		m.layers[l.Layer] = &selections{starts: []int{0}}
	}
	slots := 0
	sel := dump.NewSelReader(r)
	for {
		rec, err := sel.Next()
		if torn := (*dump.TornError)(nil); errors.As(err, &torn) {
			m.Notes = append(m.Notes, fmt.Sprintf("%s: %v", name, err))
			break
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("roofline: %s: %w", name, err)
		}
		s := m.layers[rec.Layer]
		if s == nil {
			return nil, fmt.Errorf("roofline: %s: record %d is of layer %d, which the model has no experts in", name, sel.Records()-1, rec.Layer)
		}
		if slots += len(rec.Expert); slots > maxDumpSlots {
			return nil, fmt.Errorf("roofline: %s: more than %d selections", name, maxDumpSlots)
		}
		for _, e := range rec.Expert {
			if int(e) >= w.Experts {
				return nil, fmt.Errorf("roofline: %s: record %d chose expert %d, the model has %d", name, sel.Records()-1, e, w.Experts)
			}
			s.ids = append(s.ids, uint16(e))
		}
		s.starts = append(s.starts, len(s.ids))
	}
	for _, l := range w.Layers {
		n := m.layers[l.Layer].tokens()
		if n == 0 {
			return nil, fmt.Errorf("roofline: %s: no record of layer %d", name, l.Layer)
		}
		if m.largest == 0 || n < m.largest {
			m.largest = n
		}
	}
	return m, nil
}

// Name says which dump was measured and how batches were formed.
func (m *MeasuredRouting) Name() string {
	return fmt.Sprintf("measured, %s tokens of %s", m.order, m.name)
}

// MaxBatch is the number of tokens of the layer that has fewest.
func (m *MeasuredRouting) MaxBatch() int { return m.largest }

// Distinct is the mean over all disjoint groups of batch tokens that the dump has. A fraction is cut off.
func (m *MeasuredRouting) Distinct(layer int, batch float64) (float64, bool) {
	s, b := m.layers[layer], int(batch)
	if s == nil || b < 1 || b > s.tokens() {
		return 0, false
	}
	groups := s.tokens() / b
	seen := make([]int, m.experts) // by expert: the last group that touched it, counted from 1
	distinct := 0
	for g := range groups {
		for i := range b {
			token := g*b + i
			if m.order == Spread {
				token = i*groups + g
			}
			for _, e := range s.ids[s.starts[token]:s.starts[token+1]] {
				if seen[e] != g+1 {
					seen[e] = g + 1
					distinct++
				}
			}
		}
	}
	return float64(distinct) / float64(groups), true
}
