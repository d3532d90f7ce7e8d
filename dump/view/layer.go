package view

import "math"

// Layer is one layer's figures, over the whole recording. Shares are of the routed slots, 0 to 1.
type Layer struct {
	Layer     int     `json:"layer"`
	Tokens    uint64  `json:"tokens"`
	Slots     uint64  `json:"slots"`
	Distinct  int     `json:"distinct"`       // experts picked at least once
	Entropy   float64 `json:"entropy"`        // of the pick counts, bits
	Effective float64 `json:"effective"`      // 2^Entropy: as many experts, evenly picked, would have it
	Reuse     float64 `json:"reuse"`          // experts that the token before had too; -1: no two tokens to compare
	Resident  float64 `json:"resident"`       // hits, of both kinds
	Dropped   float64 `json:"dropped"`        //
	Lost      float64 `json:"weight_dropped"` // share of the known weight that was dropped
	BytesRead float64 `json:"bytes_read"`
}

// Layers returns the figures per layer, ascending.
func (rec *Recording) Layers() []Layer { return rec.layers }

func (l *Layer) finish(rec *Recording, i int, picks []uint64) {
	l.Layer = rec.x.layers[i]
	for _, n := range picks {
		l.Slots += n
	}
	for _, n := range picks {
		if n > 0 {
			l.Distinct++
			p := float64(n) / float64(l.Slots)
			l.Entropy -= p * math.Log2(p)
		}
	}
	l.Entropy = max(0, l.Entropy) // not -0 for one expert alone
	l.Effective = math.Exp2(l.Entropy)
	var reused, compared, resident, dropped uint64
	var weight, lost float64
	t, from := &rec.tables, i*int(rec.g.timeBins)
	for at := from; at < from+int(rec.g.timeBins); at++ {
		reused += uint64(t.reused[at])
		compared += uint64(t.compared[at])
		resident += uint64(t.tHit[at]) + uint64(t.tPrefetch[at])
		dropped += uint64(t.tDropped[at])
		weight += t.tWeight[at]
		lost += t.tLost[at]
		l.BytesRead += t.tBytes[at]
	}
	l.Reuse = -1
	if compared > 0 {
		l.Reuse = float64(reused) / float64(compared)
	}
	l.Resident, l.Dropped = float64(resident)/float64(l.Slots), float64(dropped)/float64(l.Slots)
	if weight > 0 {
		l.Lost = lost / weight
	}
}
