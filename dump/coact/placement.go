package coact

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// PlacementFormat names the file that says which expert stands on which cards; docs/format/placement.md describes it.
const PlacementFormat = "sluice-placement-v1"

// MaxPlacementBytes bounds what ReadPlacement reads.
const MaxPlacementBytes = 64 << 20

// Placement assigns the experts of a model's MoE layers to cards. Every expert stands on one card or on all of them.
type Placement struct {
	Format    string  `json:"format"`
	Model     string  `json:"model"` // "" unknown
	Arch      string  `json:"arch"`
	Dump      string  `json:"dump"`    // the recording that it was made from
	Records   uint64  `json:"records"` // of that recording
	NExpert   int     `json:"n_expert"`
	Cards     int     `json:"cards"`
	Replicate int     `json:"replicate"` // experts on every card, in each layer
	FitShare  float64 `json:"fit_share"` // the placement was made from this share of each layer's tokens, the first ones
	PlacementScore
	Layers []PlacementLayer `json:"layers"`
}

// PlacementScore is what the placement did on the recording.
type PlacementScore struct {
	PSingleFit float64 `json:"p_single_fit"`
	PSingle    float64 `json:"p_single"`   // on the held-out tokens
	MeanCards  float64 `json:"mean_cards"` // on the held-out tokens
}

// PlacementLayer is one layer.
type PlacementLayer struct {
	Layer int    `json:"layer"`
	NUsed int    `json:"n_expert_used"`
	By    string `json:"replicated_by"`
	PlacementScore
	Experts [][]int `json:"experts"` // by expert: its cards, ascending
}

func (r *Report) placement(at int) *Placement {
	score := func(s *Split) PlacementScore {
		return PlacementScore{s.Fit.PSingle, s.HeldOut.PSingle, s.HeldOut.MeanCards}
	}
	s := &r.Pooled.Splits[at]
	p := &Placement{Format: PlacementFormat, Records: r.Records, NExpert: r.Experts, Cards: r.Cards, Replicate: s.Replicate,
		FitShare: r.FitShare, PlacementScore: score(s)}
	for i := range r.Layers {
		l := &r.Layers[i]
		s := &l.Splits[at]
		pl := PlacementLayer{Layer: l.Layer, NUsed: l.NUsed, By: s.By, PlacementScore: score(s)}
		for _, card := range s.cand.card {
			var cards []int
			for c := range r.Cards {
				if card == everywhere || int(card) == c {
					cards = append(cards, c)
				}
			}
			pl.Experts = append(pl.Experts, cards)
		}
		p.Layers = append(p.Layers, pl)
	}
	return p
}

// Write writes the file, one line per layer.
func (p *Placement) Write(w io.Writer) error {
	head := *p
	head.Layers = []PlacementLayer{}
	b, err := json.MarshalIndent(&head, "", "  ")
	if err != nil {
		return fmt.Errorf("coact: placement: %w", err)
	}
	const open = "[]\n}"
	b = append(b[:len(b)-len(open)], '[')
	for i := range p.Layers {
		line, err := json.Marshal(&p.Layers[i])
		if err != nil {
			return fmt.Errorf("coact: placement: layer %d: %w", p.Layers[i].Layer, err)
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, "\n    "...), line...)
	}
	_, err = w.Write(append(b, "\n  ]\n}\n"...))
	return err
}

// ReadPlacement reads a placement and checks that it is whole: every layer once and ascending, every expert on one card
// or on all, as many on all as the file says. Unknown keys are left out.
func ReadPlacement(r io.Reader) (*Placement, error) {
	b, err := io.ReadAll(io.LimitReader(r, MaxPlacementBytes+1))
	if err != nil {
		return nil, fmt.Errorf("coact: placement: %w", err)
	}
	if len(b) > MaxPlacementBytes {
		return nil, fmt.Errorf("coact: placement: longer than %d bytes", MaxPlacementBytes)
	}
	p := &Placement{}
	if err := json.Unmarshal(b, p); err != nil {
		return nil, fmt.Errorf("coact: placement: %w", err)
	}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("coact: placement: %w", err)
	}
	return p, nil
}

func (p *Placement) check() error {
	switch {
	case p.Format != PlacementFormat:
		return fmt.Errorf("format %q, want %q", p.Format, PlacementFormat)
	case p.Cards < 1 || p.Cards > MaxCards:
		return fmt.Errorf("cards %d, want 1..%d", p.Cards, MaxCards)
	case p.NExpert < 1 || p.NExpert > MaxExperts:
		return fmt.Errorf("n_expert %d, want 1..%d", p.NExpert, MaxExperts)
	case len(p.Layers) == 0:
		return errors.New("no layers")
	}
	last := -1
	for i := range p.Layers {
		l := &p.Layers[i]
		if l.Layer <= last || l.Layer > 255 {
			return fmt.Errorf("layer %d after layer %d, want ascending up to 255", l.Layer, last)
		}
		last = l.Layer
		if len(l.Experts) != p.NExpert {
			return fmt.Errorf("layer %d: %d experts, want %d", l.Layer, len(l.Experts), p.NExpert)
		}
		replicas := 0
		for e, cards := range l.Experts {
			if len(cards) != 1 && len(cards) != p.Cards {
				return fmt.Errorf("layer %d: expert %d: on %d cards, want one or all %d", l.Layer, e, len(cards), p.Cards)
			}
			for j, c := range cards {
				if c < 0 || c >= p.Cards || j > 0 && c <= cards[j-1] {
					return fmt.Errorf("layer %d: expert %d: cards %v, want ascending ones of 0..%d", l.Layer, e, cards, p.Cards-1)
				}
			}
			if len(cards) == p.Cards {
				replicas++
			}
		}
		if replicas != p.Replicate && p.Cards > 1 {
			return fmt.Errorf("layer %d: %d experts on every card, want %d", l.Layer, replicas, p.Replicate)
		}
	}
	return nil
}
