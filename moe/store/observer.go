package store

import "time"

// Observer is told what an expert cache decides and reads. ObserveRead is called by the reader lanes, at the same time by
// several; ObserveDemand by the goroutine that calls Demand. Neither may block or keep the expert waiting.
type Observer interface {
	ObserveRead(e ReadEvent)

	// ObserveDemand is one successful Demand: of its experts that many were resident and missing, and that many others
	// were evicted.
	ObserveDemand(layer, hits, misses, evicted int)
}

// ReadEvent is one finished read.
type ReadEvent struct {
	Lane          int // 0..lanes-1
	Layer, Expert int
	Projection    int // 0 gate, 1 up, 2 down
	Bytes         int // that arrived, padding of direct I/O included
	Failed        bool
	Start         time.Time
	Took          time.Duration
}
