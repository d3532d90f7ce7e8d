package store

import (
	"context"
	"fmt"

	"sluice/moe"
)

// fixedSource serves experts that are all in memory and stay there: every demand is a hit.
type fixedSource struct {
	views [][]Expert // [layer][expert]
	layer int
	held  []int32 // experts of the last Demand; capacity is the largest layer's
	next  int     // of held, for Next
	stats Stats
	notes []string
	free  func() error // nil: nothing to free, or closed
}

func newFixedSource(views [][]Expert) *fixedSource {
	most, entries := 0, 0
	for _, v := range views {
		most = max(most, len(v))
		entries += len(v)
	}
	return &fixedSource{views: views, held: make([]int32, 0, most), stats: Stats{Entries: entries}}
}

func (s *fixedSource) Residency(layer int, dst []uint8) {
	if len(dst) != len(s.views[layer]) {
		panicResidency(layer, len(dst), len(s.views[layer]))
	}
	for i := range dst {
		dst[i] = moe.Hit
	}
}

func (s *fixedSource) Demand(layer int, experts []int32) (int, error) {
	if layer < 0 || layer >= len(s.views) {
		return 0, fmt.Errorf("moe: demand of layer %d of %d", layer, len(s.views))
	}
	if err := checkDemand(layer, experts, len(s.views[layer]), len(s.held)); err != nil {
		return 0, err
	}
	s.layer, s.next = layer, 0
	s.held = append(s.held, experts...)
	s.stats.Demanded += int64(len(experts))
	s.stats.Hits += int64(len(experts))
	return len(experts), nil
}

func (s *fixedSource) Next(context.Context) (int, Expert, error) {
	if !s.Ready() {
		return -1, Expert{}, errNoneLeft
	}
	s.next++
	x, err := s.Expert(s.next - 1)
	return s.next - 1, x, err
}

func (s *fixedSource) Ready() bool { return s.next < len(s.held) }

func (s *fixedSource) Prefetch(int, []int32, int64) error { return nil }

func (s *fixedSource) Expert(i int) (Expert, error) { return s.views[s.layer][s.held[i]], nil }

func (s *fixedSource) ReadBytes(int) int64 { return 0 }

func (s *fixedSource) Release() { s.held = s.held[:0] }

func (s *fixedSource) Stats() Stats { return s.stats }

func (s *fixedSource) Notes() []string { return s.notes }

func (s *fixedSource) Close() error {
	free := s.free
	s.views, s.free, s.held = nil, nil, s.held[:0]
	s.stats.ResidentBytes = 0
	if free == nil {
		return nil
	}
	return free()
}

// checkDemand checks the ids of a Demand of a layer of nExpert experts while held experts are held.
func checkDemand(layer int, experts []int32, nExpert, held int) error {
	if held > 0 {
		return fmt.Errorf("moe: demand of layer %d while %d experts are held: release them first", layer, held)
	}
	prev := int32(-1)
	for i, e := range experts {
		if e <= prev || int(e) >= nExpert {
			return fmt.Errorf("moe: demand of layer %d: expert %d at place %d: want ids ascending within 0..%d",
				layer, e, i, nExpert-1)
		}
		prev = e
	}
	return nil
}

// panicResidency is out of line so that its callers stay small.
//
//go:noinline
func panicResidency(layer, got, want int) {
	panic(fmt.Sprintf("moe: residency of layer %d: buffer for %d experts, the layer has %d", layer, got, want))
}
