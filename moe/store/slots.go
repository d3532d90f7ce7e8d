package store

import (
	"fmt"
	"math"
	"os"
	"slices"
)

// slotAlign is the alignment of every region in a slot, whatever a file's direct I/O asks for: a region starts at the
// file offset rounded down to it, so that a direct read lands in its place without a bounce buffer. It is a constant, and
// applies to buffered reads too, so that what fits in a budget does not depend on the file system.
const slotAlign = 4096

// slotShape is where the projections of one layer's experts lie in a slot:
//
//	| gate: skew, rows, tail | up: skew, rows, tail | down: skew, rows, tail |
//	  ^ offset[0]              ^ offset[1]            ^ offset[2]
//
// skew is the file offset modulo slotAlign. A region is as long as the largest padded extent of the layer, and a slot is
// whole pages, because that is what it takes of memory.
type slotShape struct {
	bytes  int64                  // 0: a dense layer
	offset [projections + 1]int64 // multiples of slotAlign; the last is the end of the last region
}

func newSlotShape(experts []ExpertExtents, pageSize int64) slotShape {
	var s slotShape
	for p := range projections {
		var most int64
		for e := range experts {
			if t := experts[e].at(p); t.Len > 0 {
				most = max(most, alignUp(t.Off+t.Len, slotAlign)-alignDown(t.Off, slotAlign))
			}
		}
		s.offset[p+1] = s.offset[p] + most
	}
	s.bytes = alignUp(s.offset[projections], pageSize)
	return s
}

// region returns the place in the slot memory of an extent as projection p: from the file offset rounded down to align
// (a divisor of slotAlign) to the end of the extent rounded up to slotAlign. The extent starts skip bytes into it.
func (s *slotShape) region(mem []byte, p int, t *Extent, align int64) (dst []byte, skip int64) {
	from := alignDown(t.Off, slotAlign)
	start := alignDown(t.Off, align)
	end := alignUp(t.Off+t.Len, slotAlign)
	o := s.offset[p]
	return mem[o+start-from : o+end-from], t.Off - start
}

// WorkingSet returns the bytes of slots, padding included, that the experts of one token take over all layers when each
// layer uses nUsed of them. The layout is valid (Layout.Validate). Slots are whole pages of this machine.
func WorkingSet(l *Layout, nUsed int) int64 { return workingSet(l, nUsed, int64(os.Getpagesize())) }

func workingSet(l *Layout, nUsed int, pageSize int64) int64 {
	var sum int64
	for _, experts := range l.Experts {
		n := int64(min(nUsed, len(experts)))
		if n <= 0 {
			continue
		}
		slot := newSlotShape(experts, pageSize).bytes
		if slot > (math.MaxInt64-sum)/n {
			return math.MaxInt64
		}
		sum += n * slot
	}
	return sum
}

// readPiece is the most that one read brings: several lanes then share a large projection, so that the expert whose turn
// it is arrives before the ones behind it. A device that was measured gave its full bandwidth from 512 KiB on, with one
// reader or with eight.
const readPiece = 512 << 10

// slot is the memory of one resident expert, and the reads that fill it.
type slot struct {
	mem    []byte // anonymous mapping outside the Go heap
	class  int    // index into slotMemory.sizes
	expert Expert // views into mem
	reads  []read // of the last fill; its memory is kept
	group  readGroup
	ready  bool  // the reads are done and looked at; only the session's goroutine looks
	hollow bool  // ready, but nothing was read: whoever demanded the expert had it elsewhere
	err    error // first failed read's; valid when ready
}

// add returns a further read of the slot for the caller to fill in, overwriting an old one. Reads are all added before
// the first is handed out: adding may move them.
func (s *slot) add() *read {
	if n := len(s.reads); n < cap(s.reads) {
		s.reads = s.reads[:n+1]
	} else {
		s.reads = append(s.reads, read{})
	}
	r := &s.reads[len(s.reads)-1]
	*r = read{group: &s.group}
	return r
}

// look reports whether the slot's reads are done, and notes the first failure once they are.
func (s *slot) look() bool {
	if s.ready || !s.group.done() {
		return s.ready
	}
	s.ready = true
	for i := range s.reads {
		if r := &s.reads[i]; r.err != nil {
			s.err = fmt.Errorf("%s: %w", projectionNames[r.what[2]], r.err)
			break
		}
	}
	return true
}

// slotMemory maps and keeps slots. The bytes mapped never exceed the budget. A free slot is kept for the next expert of
// its size; where another size is wanted it is resized in place of a new mapping, which keeps the pages that it has.
//
// Slots that are never resized are cut from one mapping, so that they share large pages with their neighbours. Others cannot;
// and mapped one by one a slot's first pages are there before its neighbour is, so that none that reaches over is large: of
// slots of 3.6 MiB more than a quarter stayed in small pages.
type slotMemory struct {
	sys     system
	arrived chan struct{} // of the slots' read groups
	budget  int64
	mapped  int64
	fixed   bool      // slots keep their size: there is one only, or the budget holds all experts
	room    int64     // fixed: bytes of as many slots as there can be, at most the budget; 0: slots are mapped one by one
	whole   []byte    // fixed: the mapping of room bytes; nil: not yet
	rest    []byte    // what of it was no slot yet
	sizes   []int64   // by class, multiples of the page size
	free    [][]*slot // by class
	spare   []*slot   // without memory
}

// get returns a slot of the class with arbitrary contents. The caller has made sure that the slots in use and this one
// fit in the budget.
func (m *slotMemory) get(class int) (*slot, error) {
	if s := pop(&m.free[class]); s != nil {
		return s, nil
	}
	size := m.sizes[class]
	for other := range m.free {
		if m.fixed {
			break
		}
		for {
			s := pop(&m.free[other])
			if s == nil {
				break
			}
			if m.mapped-m.sizes[other]+size <= m.budget {
				if err := m.resize(s, class); err != nil {
					return nil, err
				}
				return s, nil
			}
			if err := m.unmap(s); err != nil {
				return nil, err
			}
		}
	}
	if m.mapped+size > m.budget {
		panic("moe: slot memory: slots in use exceed the budget") // Cache bounds them
	}
	mem, err := m.take(size)
	if err != nil {
		return nil, err
	}
	s := pop(&m.spare)
	if s == nil {
		s = new(slot)
		s.group.arrived = m.arrived
	}
	s.mem, s.class = mem, class
	m.mapped += size
	return s, nil
}

// take returns memory for a new slot.
func (m *slotMemory) take(size int64) ([]byte, error) {
	if m.room == 0 {
		mem, err := m.sys.mmap(int(size), m.largest())
		if err != nil {
			return nil, fmt.Errorf("map %d bytes for an expert's slot (%d of %d bytes mapped): %w", size, m.mapped, m.budget, err)
		}
		return mem, nil
	}
	if m.whole == nil {
		mem, err := m.sys.mmap(int(m.room), 0)
		if err != nil {
			return nil, fmt.Errorf("map %d bytes for experts' slots (budget %d): %w", m.room, m.budget, err)
		}
		m.whole, m.rest = mem, mem
	}
	mem := m.rest[:size:size]
	m.rest = m.rest[size:]
	return mem, nil
}

// largest is the size that a slot may be resized to, 0 where none is ever resized.
func (m *slotMemory) largest() int {
	if m.fixed {
		return 0
	}
	return int(slices.Max(m.sizes))
}

// resize gives a slot that is in no list another class. If that fails the slot is put back as it was.
func (m *slotMemory) resize(s *slot, class int) error {
	old, size := m.sizes[s.class], m.sizes[class]
	mem, err := m.sys.remap(s.mem, int(size))
	if err != nil {
		m.put(s)
		return fmt.Errorf("resize an expert's slot from %d to %d bytes: %w", old, size, err)
	}
	s.mem, s.class = mem, class
	m.mapped += size - old
	return nil
}

// put takes back a slot that nobody reads into or from.
func (m *slotMemory) put(s *slot) {
	s.expert, s.ready, s.hollow, s.err = Expert{}, false, false, nil
	m.free[s.class] = append(m.free[s.class], s)
}

func (m *slotMemory) unmap(s *slot) error {
	mem := s.mem
	s.mem, s.expert = nil, Expert{}
	m.mapped -= int64(len(mem))
	m.spare = append(m.spare, s)
	if m.room > 0 {
		return nil // all of it at the end
	}
	if err := m.sys.munmap(mem); err != nil {
		return fmt.Errorf("unmap an expert's slot of %d bytes: %w", len(mem), err)
	}
	return nil
}

// close unmaps the free slots; the caller has put all of them back.
func (m *slotMemory) close() (err error) {
	for class := range m.free {
		for s := pop(&m.free[class]); s != nil; s = pop(&m.free[class]) {
			if e := m.unmap(s); err == nil {
				err = e
			}
		}
	}
	m.spare = nil
	if m.whole != nil {
		if e := m.sys.munmap(m.whole); e != nil && err == nil {
			err = fmt.Errorf("unmap %d bytes of experts' slots: %w", len(m.whole), e)
		}
		m.whole, m.rest = nil, nil
	}
	return err
}

// pop takes the last one off a list of slots, nil when there is none.
func pop(list *[]*slot) *slot {
	n := len(*list)
	if n == 0 {
		return nil
	}
	s := (*list)[n-1]
	*list = (*list)[:n-1]
	return s
}

// alignDown and alignUp round to a multiple of a, a power of two.
func alignDown(n, a int64) int64 { return n &^ (a - 1) }
func alignUp(n, a int64) int64   { return (n + a - 1) &^ (a - 1) }
