package store

import "time"

// metered is a Source that tells how long its own work takes: residency, the choice of evictions, slots, submitting reads.
// The time that a method blocks on reads is no part of it.
type metered struct {
	Source
	add func(time.Duration)
}

// NewMetered returns src with its own work reported to add, call by call. Closing it closes src.
func NewMetered(src Source, add func(time.Duration)) Source { return &metered{src, add} }

func (m *metered) Residency(layer int, dst []uint8) {
	start := time.Now()
	m.Source.Residency(layer, dst)
	m.add(time.Since(start))
}

func (m *metered) Demand(layer int, experts []int32) (int, error) {
	start, waited := time.Now(), m.Stats().WaitSeconds
	n, err := m.Source.Demand(layer, experts)
	m.add(m.own(start, waited))
	return n, err
}

func (m *metered) Prefetch(layer int, experts []int32, maxBytes int64) error {
	start, waited := time.Now(), m.Stats().WaitSeconds
	err := m.Source.Prefetch(layer, experts, maxBytes)
	m.add(m.own(start, waited))
	return err
}

func (m *metered) Release() {
	start := time.Now()
	m.Source.Release()
	m.add(time.Since(start))
}

// own is the time since start but for what was waited for reads.
func (m *metered) own(start time.Time, waited float64) time.Duration {
	return time.Since(start) - time.Duration((m.Stats().WaitSeconds-waited)*1e9)
}
