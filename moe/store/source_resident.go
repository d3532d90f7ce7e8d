package store

import (
	"fmt"
	"os"
	"sort"
)

const (
	// Lanes of NewResident: enough requests in flight to keep an SSD busy with chunks of residentChunk.
	residentLanes = 4
	residentChunk = 4 << 20
)

// span is a range of one file that holds experts back to back, and its copy in memory. Experts of a merged tensor and
// tensors beside each other share a span, so that hardly anything is padded.
type span struct {
	file     int
	off, end int64 // multiples of slotAlign; end may lie past the end of the file
	need     int64 // end of the last extent
	mem      []byte
}

// NewResident reads all experts once, past the page cache where the file system allows it, into anonymous memory
// outside the Go heap; Stats.ResidentBytes says how much. Notes tell where reads were buffered, and why.
func NewResident(l *Layout) (Source, error) { return newResident(linux{}, l) }

func newResident(sys system, l *Layout) (_ Source, err error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	ins, notes, err := openInputs(sys, l, true)
	if err != nil {
		return nil, err
	}
	spans := expertSpans(l)
	unmap := func() (err error) {
		for i := range spans {
			if mem := spans[i].mem; mem != nil {
				spans[i].mem = nil
				if e := sys.munmap(mem); e != nil && err == nil {
					err = fmt.Errorf("moe: unmap %d bytes of experts: %w", len(mem), e)
				}
			}
		}
		return err
	}
	defer func() {
		if e := ins.close(); err == nil {
			err = e
		}
		if err != nil {
			unmap() // the error that led here says more than one from here
		}
	}()
	var total int64
	for i := range spans {
		s := &spans[i]
		n := alignUp(s.end-s.off, int64(os.Getpagesize()))
		if s.mem, err = sys.mmap(int(n), 0); err != nil {
			return nil, fmt.Errorf("moe: map %d bytes for weights of %s (%d bytes mapped): %w", n, l.Files[s.file].Name, total, err)
		}
		total += n
	}
	var stats Stats
	if err := readSpans(spans, ins, &stats); err != nil {
		return nil, err
	}
	src := newFixedSource(expertViews(l, func(t *Extent) []byte {
		s := &spans[findSpan(spans, t)]
		return s.mem[t.Off-s.off : t.Off-s.off+t.Len : t.Off-s.off+t.Len]
	}))
	stats.Entries, stats.ResidentBytes, stats.Direct = src.stats.Entries, total, ins.direct()
	src.stats, src.notes, src.free = stats, append(notes, ins.notes()...), unmap
	return src, nil
}

// expertSpans returns the ranges of the files that experts lie in, by file and offset; extents whose padded ranges touch
// are one span.
func expertSpans(l *Layout) []span {
	var all []span
	for _, experts := range l.Experts {
		for e := range experts {
			for p := range projections {
				if t := experts[e].at(p); t.Len > 0 {
					end := t.Off + t.Len
					all = append(all, span{file: t.File, off: alignDown(t.Off, slotAlign), end: alignUp(end, slotAlign), need: end})
				}
			}
		}
	}
	sort.Slice(all, func(i, j int) bool {
		if all[i].file != all[j].file {
			return all[i].file < all[j].file
		}
		return all[i].off < all[j].off
	})
	spans := all[:0]
	for _, s := range all {
		if n := len(spans); n > 0 && spans[n-1].file == s.file && s.off <= spans[n-1].end {
			spans[n-1].end, spans[n-1].need = max(spans[n-1].end, s.end), max(spans[n-1].need, s.need)
			continue
		}
		spans = append(spans, s)
	}
	return spans
}

// findSpan returns the index of the span that the extent lies in.
func findSpan(spans []span, t *Extent) int {
	return sort.Search(len(spans), func(i int) bool {
		return spans[i].file > t.File || spans[i].file == t.File && spans[i].off > t.Off
	}) - 1
}

// readSpans fills the spans, in chunks over lanes, and returns the first error in file order after all have finished.
func readSpans(spans []span, ins inputs, stats *Stats) error {
	var reads []read
	group := &readGroup{arrived: make(chan struct{}, 1)}
	for i := range spans {
		s := &spans[i]
		for off := s.off; off < s.need; off += residentChunk {
			from, to := off-s.off, min(off+residentChunk, s.end)-s.off
			reads = append(reads, read{in: ins[s.file], dst: s.mem[from:to], off: off, want: int(min(s.need-off, to-from)), group: group})
		}
	}
	group.pending.Store(int32(len(reads)))
	ln := startLanes(min(residentLanes, len(reads)), residentLanes, nil)
	for i := range reads {
		ln.submit(&reads[i], false)
	}
	for !group.done() {
		<-group.arrived
	}
	ln.close()
	ln.fill(stats)
	for i := range reads {
		if err := reads[i].err; err != nil {
			return fmt.Errorf("moe: weights: %w", err)
		}
	}
	return nil
}
