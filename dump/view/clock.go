package view

// clock puts the turns of a trace behind each other on one axis. Within a turn positions count from its first one, so that
// a long conversation, whose later turns begin at high positions, has no gaps. Positions are below 2^31 (dump.TraceReader),
// so that no file is long enough to overflow the axis.
type clock struct {
	begun     bool
	turn      int
	turns     int
	base, end int64 // of the current turn: its first tick, and the first one not used yet
	first     int   // position of its first tick
}

// at returns the tick of a position and which turn it is in, counted as turns begin. A position before its turn's first one
// begins a turn too: the recording has started over.
func (k *clock) at(turn, step int) (tick int64, nth int) {
	if !k.begun || turn != k.turn || step < k.first {
		if k.begun {
			k.turns++
		}
		k.begun, k.turn, k.first, k.base = true, turn, step, k.end
	}
	tick = k.base + int64(step-k.first)
	k.end = max(k.end, tick+1)
	return tick, k.turns
}

// passClock puts the rows of several sequences on one axis in the order in which they were computed: the rows of a pass, which
// are the same in every layer, behind those of the pass before.
type passClock struct {
	pass      int64
	layer     int
	base, end int64 // of the current pass
	next      int64 // of the layer's next row
}

// at returns the tick of the row that comes next in a layer of a pass.
func (p *passClock) at(pass int64, layer int) int64 {
	switch {
	case pass != p.pass:
		p.pass, p.base = pass, p.end
		fallthrough
	case layer != p.layer:
		p.layer, p.next = layer, p.base
	}
	tick := p.next
	p.next++
	p.end = max(p.end, p.next)
	return tick
}
