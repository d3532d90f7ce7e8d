package sweep

// opKind is one kind of operation of a rank.
type opKind uint8

const (
	opReadQ       opKind = iota // the rank's queries from its memory
	opAttend                    // attend over the block at hand, which is read tile by tile
	opSendKV                    // a copy of the block at hand to the peer
	opRecvKV                    // the peer's block, which is then the one at hand
	opSendPartial               // the partial softmax to the peer; the rank keeps no claim on it
	opRecvPartial               // the peer's partial softmax, and its merge into the rank's own
	opWrite                     // divide by the sum and write the rows
)

// op is one operation. The sizes are all that the model needs; the executor has the data.
type op struct {
	kind      opKind
	peer      int   // rank
	rows      int   // queries
	positions int   // of the block, for opAttend
	bytes     int64 // moved
}

// rankPlan is what one rank owns and does. A rank that idles has no ops and owns nothing.
type rankPlan struct {
	q0, q1 int // queries
	k0, k1 int // positions owned
	ops    []op
	copyOf int // which copy of the output it writes to
}

// Schedule is a case on a problem: what every rank owns and does. It is read-only.
type Schedule struct {
	Config Config
	Case   Case
	Work   Work

	ranks  []rankPlan // index cube*P + pe
	copies int        // of the output that the ranks write together
}

// New makes the schedule of a case. Sizes that do not divide are an error that names the size.
func New(c Config, k Case) (*Schedule, error) {
	w, err := k.Work(&c)
	if err != nil {
		return nil, err
	}
	s := &Schedule{Config: c, Case: k, Work: w, ranks: make([]rankPlan, c.C*c.P), copies: 1}
	if !k.CubeSP && k.PESP {
		s.copies = c.C // cubes do not talk to each other, so each has its own
	}
	for cube := range c.C {
		for pe := range c.P {
			s.plan(cube, pe)
		}
	}
	return s, nil
}

func (s *Schedule) rank(cube, pe int) int { return cube*s.Config.P + pe }

// active tells whether a rank works, by the rule that Work counts by.
func (s *Schedule) active(cube, pe int) bool {
	switch {
	case s.Case.PESP:
		return true
	case s.Config.Mode == Prefill:
		return s.Case.CubeSP || cube == 0
	default:
		return pe == 0 && (s.Case.CubeSP || cube == 0)
	}
}

func (s *Schedule) plan(cube, pe int) {
	if !s.active(cube, pe) {
		return
	}
	c, k, w := &s.Config, s.Case, s.Work
	r := &s.ranks[s.rank(cube, pe)]
	switch { // which positions: the cube's share, then the PE's of it
	case k.CubeSP && k.PESP:
		r.k0 = (cube*c.P + pe) * w.SLocal
	case k.CubeSP:
		r.k0 = cube * w.SLocal
	case k.PESP:
		r.k0 = pe * w.SLocal
	}
	r.k1 = r.k0 + w.SLocal
	if c.Mode == Prefill {
		switch {
		case k.CubeSP && k.PESP:
			r.q0 = cube * w.TQ
		case k.CubeSP:
			r.q0 = s.rank(cube, pe) * w.TQ
		case !k.PESP:
			r.q0 = pe * w.TQ
		}
	}
	r.q1 = r.q0 + w.TQ
	if s.copies > 1 {
		r.copyOf = cube
	}
	add := func(o op) { o.rows = w.TQ; r.ops = append(r.ops, o) }
	rowBytes := int64(w.TQ) * int64(c.qRow()) * 4
	attend := op{kind: opAttend, positions: w.SLocal, bytes: w.KVBytes}

	add(op{kind: opReadQ, bytes: rowBytes})
	if k.CubeSP && c.Mode == Prefill {
		next, prev := s.rank((cube+1)%c.C, pe), s.rank((cube+c.C-1)%c.C, pe)
		for step := range c.C {
			last := step == c.C-1
			if !last {
				add(op{kind: opSendKV, peer: next, bytes: w.KVBytes}) // ahead of the work, so that it travels meanwhile
			}
			add(attend)
			if !last {
				add(op{kind: opRecvKV, peer: prev, bytes: w.KVBytes})
			}
		}
	} else {
		add(attend)
	}
	if k.PESP && !s.reduce(add, pe, c.P, func(i int) int { return s.rank(cube, i) }) {
		return
	}
	if k.CubeSP && c.Mode == Decode && !s.reduce(add, cube, c.C, func(i int) int { return s.rank(i, pe) }) {
		return
	}
	add(op{kind: opWrite, bytes: rowBytes})
}

// partialBytes is the size of a partial softmax: per query head the weighted sum, the maximum and the sum of exponentials.
func (s *Schedule) partialBytes() int64 {
	return int64(s.Work.TQ) * int64(s.Config.qHeads()) * int64(s.Config.HeadDim+2) * 4
}

// reduce adds member i's part of a binary tree over n members that ends at member 0, and tells whether i is that.
func (s *Schedule) reduce(add func(op), i, n int, rank func(i int) int) bool {
	for stride := 1; stride < n; stride *= 2 {
		if i%(2*stride) != 0 {
			add(op{kind: opSendPartial, peer: rank(i - stride), bytes: s.partialBytes()})
			return false
		}
		if i+stride < n {
			add(op{kind: opRecvPartial, peer: rank(i + stride), bytes: s.partialBytes()})
		}
	}
	return true
}

// memory is about how many bytes Execute holds at once.
func (s *Schedule) memory() int64 {
	c := &s.Config
	n := 4 * int64(c.SKV) * int64(c.kvRow()) // the whole problem, which shards are copied from
	n += int64(s.copies+2) * int64(c.TQ) * int64(c.qRow()) * 4
	for i := range s.ranks {
		r := &s.ranks[i]
		if len(r.ops) == 0 {
			continue
		}
		n += s.Work.KVBytes + 3*s.partialBytes() // its own, one under way, its queries
		if s.Case.CubeSP && c.Mode == Prefill {
			n += 2 * s.Work.KVBytes // one under way and one being replaced
		}
	}
	return n
}
