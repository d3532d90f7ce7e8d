package sweep

import (
	"container/heap"
	"encoding/json"
	"fmt"
	"io"
	"math"

	"sluice/bench/internal/jsonpos"
)

// Topology is the machine that latency_ns is modelled on: C cubes in a ring, P processing elements in each, every PE with
// memory of its own. Each PE has one outgoing link within its cube; all PEs of a cube share one outgoing link to other
// cubes. A transfer holds its link for bytes/bandwidth and arrives one latency later, between cubes one latency for each
// step along the ring. Reads and arithmetic of an operation overlap; operations of a rank do not.
type Topology struct {
	PEFlops         float64 `json:"pe_flops"`             // operations per second of a PE
	PEMemBW         float64 `json:"pe_mem_bw"`            // bytes per second of a PE's memory
	PEMemLatency    float64 `json:"pe_mem_latency_ns"`    // of the first byte of an operation
	PELinkBW        float64 `json:"pe_link_bw"`           // bytes per second within a cube
	PELinkLatency   float64 `json:"pe_link_latency_ns"`   //
	CubeLinkBW      float64 `json:"cube_link_bw"`         // bytes per second from a cube to another
	CubeLinkLatency float64 `json:"cube_link_latency_ns"` // per step along the ring
}

// DefaultTopology is the one that is used where no file is given: a PE of 8 TFLOP/s beside 256 GB/s, and links of a half and
// of twice that memory bandwidth. It is a round example, no product.
func DefaultTopology() Topology {
	return Topology{PEFlops: 8e12, PEMemBW: 256e9, PEMemLatency: 200, PELinkBW: 128e9, PELinkLatency: 100, CubeLinkBW: 512e9, CubeLinkLatency: 500}
}

type topologyField struct {
	key  string
	v    *float64
	zero bool // a latency may be 0
}

func (t *Topology) fields() []topologyField {
	return []topologyField{{"pe_flops", &t.PEFlops, false}, {"pe_mem_bw", &t.PEMemBW, false}, {"pe_mem_latency_ns", &t.PEMemLatency, true},
		{"pe_link_bw", &t.PELinkBW, false}, {"pe_link_latency_ns", &t.PELinkLatency, true},
		{"cube_link_bw", &t.CubeLinkBW, false}, {"cube_link_latency_ns", &t.CubeLinkLatency, true}}
}

// Check tells what is wrong with the numbers, and nil when nothing is.
func (t Topology) Check() error {
	for _, f := range t.fields() {
		lo := 1.0
		if f.zero {
			lo = 0
		}
		if v := *f.v; !(v >= lo && v <= 1e24) {
			return fmt.Errorf("sweep: topology: %s is %v, want %v..1e24", f.key, v, lo)
		}
	}
	return nil
}

const maxTopologyBytes = 1 << 20

// ReadTopology reads a topology file: one JSON object with all keys of Topology. Unknown keys are refused, so that a
// misspelt one cannot pass; errors name the line and column, or the key.
func ReadTopology(r io.Reader) (Topology, error) {
	var t Topology
	b, err := io.ReadAll(io.LimitReader(r, maxTopologyBytes+1))
	if err != nil {
		return t, err
	}
	if len(b) > maxTopologyBytes {
		return t, fmt.Errorf("sweep: topology longer than %d bytes", maxTopologyBytes)
	}
	var keys map[string]*float64
	if err := json.Unmarshal(b, &keys); err != nil {
		return t, fmt.Errorf("sweep: topology: %w", jsonpos.Describe(b, err))
	}
	for _, f := range t.fields() {
		v := keys[f.key]
		if v == nil {
			return t, fmt.Errorf("sweep: topology: key %q is missing", f.key)
		}
		*f.v = *v
		delete(keys, f.key)
	}
	for key := range keys {
		return t, fmt.Errorf("sweep: topology: key %q is unknown", key)
	}
	return t, t.Check()
}

// event is a rank that is ready for its next operation.
type event struct {
	at   float64 // seconds
	rank int
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || (e[i].at == e[j].at && e[i].rank < e[j].rank)
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// simulation is the state of the model. Events are taken in the order of time, so a link serves whoever asks first.
type simulation struct {
	t        Topology
	s        *Schedule
	queue    events
	next     []int              // by rank: its next operation
	peFree   []float64          // by rank: when its link within the cube is free
	cubeFree []float64          // by cube: when its link to other cubes is free
	arrivals map[pair][]float64 // messages under way or waiting
	waiting  map[pair]float64   // receivers, since when
	end      float64
}

// Simulate returns how long the schedule takes on the topology, in nanoseconds.
func (t Topology) Simulate(s *Schedule) (float64, error) {
	if err := t.Check(); err != nil {
		return 0, err
	}
	m := &simulation{t: t, s: s, next: make([]int, len(s.ranks)), peFree: make([]float64, len(s.ranks)), cubeFree: make([]float64, s.Config.C),
		arrivals: map[pair][]float64{}, waiting: map[pair]float64{}}
	for i := range s.ranks {
		if len(s.ranks[i].ops) > 0 {
			heap.Push(&m.queue, event{0, i})
		}
	}
	for m.queue.Len() > 0 {
		m.step(heap.Pop(&m.queue).(event))
	}
	for i := range s.ranks {
		if m.next[i] != len(s.ranks[i].ops) {
			return 0, fmt.Errorf("sweep: case %s: rank %d waits for ever at operation %d", s.Case.Name, i, m.next[i])
		}
	}
	return m.end * 1e9, nil
}

// step starts the next operation of a rank and sets when it is ready for the one after.
func (m *simulation) step(e event) {
	o := &m.s.ranks[e.rank].ops[m.next[e.rank]]
	done := e.at
	switch o.kind {
	case opSendKV, opSendPartial:
		m.send(e, o)
	case opRecvKV, opRecvPartial:
		key := pair{o.peer, e.rank}
		here := m.arrivals[key]
		if len(here) == 0 {
			m.waiting[key] = e.at
			return
		}
		m.arrivals[key] = here[1:]
		done = max(done, here[0])
		if o.kind == opRecvPartial {
			done += m.busy(m.mergeFlops(o), 3*float64(o.bytes)) // read both, write one
		}
	case opAttend:
		done += m.busy(m.attendFlops(o), float64(o.bytes))
	case opReadQ, opWrite:
		done += m.busy(0, float64(o.bytes))
	}
	m.next[e.rank]++
	m.end = max(m.end, done)
	if m.next[e.rank] < len(m.s.ranks[e.rank].ops) {
		heap.Push(&m.queue, event{done, e.rank})
	}
}

// busy is the time of an operation on a PE: the longer of arithmetic and memory traffic.
func (m *simulation) busy(flops, bytes float64) float64 {
	return m.t.PEMemLatency*1e-9 + max(flops/m.t.PEFlops, bytes/m.t.PEMemBW)
}

// attendFlops: per query head and position a dot product and a scaled addition of a head each; the exponential is a
// hundredth of that and left out.
func (m *simulation) attendFlops(o *op) float64 {
	return 4 * float64(m.s.Config.HeadDim) * float64(m.s.Config.qHeads()) * float64(o.rows) * float64(o.positions)
}

// mergeFlops: two products and an addition per value.
func (m *simulation) mergeFlops(o *op) float64 {
	return 3 * float64(m.s.Config.qRow()) * float64(o.rows)
}

// send puts a message on its link. The rank goes on at once.
func (m *simulation) send(e event, o *op) {
	from, to := e.rank/m.s.Config.P, o.peer/m.s.Config.P
	free, bw, latency := &m.peFree[e.rank], m.t.PELinkBW, m.t.PELinkLatency
	if from != to {
		around := int(math.Abs(float64(from - to)))
		steps := min(around, m.s.Config.C-around)
		free, bw, latency = &m.cubeFree[from], m.t.CubeLinkBW, m.t.CubeLinkLatency*float64(steps)
	}
	*free = max(*free, e.at) + float64(o.bytes)/bw
	arrival := *free + latency*1e-9
	key := pair{e.rank, o.peer}
	m.arrivals[key] = append(m.arrivals[key], arrival)
	if since, ok := m.waiting[key]; ok {
		delete(m.waiting, key)
		heap.Push(&m.queue, event{max(since, arrival), o.peer})
	}
}
