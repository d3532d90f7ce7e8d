package store

import (
	"context"
	"errors"
)

// errNoneLeft is a misuse: Next without an expert to hand out.
var errNoneLeft = errors.New("moe: next: every demanded expert has been handed out")

// Source hands out experts' weights. One Source serves one session: its methods are not safe for concurrent calls, while
// several sources may stand on one Layout.
//
// A layer call goes: Residency, then until no expert is left Demand, Next for each, Release. No decision depends on
// when a read finishes: residency is a function of the sequence of Demand and Prefetch calls and of the configuration
// alone. No method allocates unless it returns an error, but for Notes and Close.
type Source interface {
	// Residency writes for each expert of the layer moe.Miss (would have to be read), moe.Hit (resident) or moe.HitAhead
	// (resident by a prefetch, and not demanded since), as of before the call; an expert is resident from the Demand or
	// Prefetch that named it. len(dst) is the layer's number of experts.
	Residency(layer int, dst []uint8)

	// Demand holds the first n >= 1 of the experts (ascending, distinct ids), the longest prefix that fits in the budget
	// together, and starts the reads of those that are not resident. The caller passes the rest on the next Demand. It is
	// an error to Demand while experts are held, or when not even one expert fits. No experts: 0, nil.
	Demand(layer int, experts []int32) (n int, err error)

	// Next hands out the experts of the last Demand, each once, as they come into memory: i is the expert's place in the
	// Demand, and of those that are there the one with the lowest is next. It blocks until one is there or ctx is done;
	// then the error is ctx's, and the reads in flight go on. The weights are the source's and valid until Release. After
	// a failed read the error names the file, the offset, and the bytes got and wanted; the expert leaves the cache at
	// Release, and a later Demand reads it again. It is an error to call it when every expert has been handed out.
	Next(ctx context.Context) (i int, x Expert, err error)

	// Ready reports whether there is an expert for Next to hand out without blocking.
	Ready() bool

	// Expert is Next for a caller that wants a certain one, 0 <= i < n, and may ask for it again.
	Expert(i int) (Expert, error)

	// Prefetch starts the reads of experts of a layer that will probably be demanded (distinct ids, the most wanted
	// first), behind all reads that are demanded: those that are not resident, as far as their memory stays within
	// maxBytes. Nothing that is held goes for it. Where nothing has to be read it does nothing.
	Prefetch(layer int, experts []int32, maxBytes int64) error

	// ReadBytes returns the logical bytes that had to be read for the i-th demanded expert: 0 on a hit.
	ReadBytes(i int) int64

	// Release gives up the experts of the last Demand. With nothing held it does nothing.
	Release()

	// Stats returns the counters so far; reads in flight are counted when they finish.
	Stats() Stats

	// Notes returns the fallbacks taken, a sentence each, with the reason.
	Notes() []string

	// Close waits for the reads in flight and frees what the source allocated. Weights handed out are invalid after it, and
	// the counters other than ResidentBytes stay as they were. A second Close does nothing.
	Close() error
}

// Sparer is a Source whose caller may have experts in another memory, a device's. What is resident, and with it what is
// dropped, then follows from the source's own budget all the same.
type Sparer interface {
	Source

	// DemandBut is Demand for a caller that has the weights of experts[i] where has[i] is set: they are decided on, counted,
	// held and made resident as ever, but not read, and Next does not hand them out. Expert reads one after all, and so does
	// a later Demand that does not have it, though it is a hit then. nil: the caller has none.
	DemandBut(layer int, experts []int32, has []bool) (n int, err error)
}

// Stats are a source's counters. They hold at any time:
//
//	Demanded == Hits + Misses
//	Entries  == Misses + Prefetched + Loaded - Evictions - Failed   (cached source)
type Stats struct {
	Demanded int64 // experts held by Demand calls
	Hits     int64 // of those, resident before the call
	Misses   int64 // of those, not resident before the call
	Loaded   int64 // experts that were resident from the start (Keeper)

	// Experts read by Prefetch, those of them that were demanded, and those evicted before; the rest is still resident.
	// The bytes are what they take of the budget.
	Prefetched, PrefetchUsed, PrefetchWasted              int64
	PrefetchBytes, PrefetchUsedBytes, PrefetchWastedBytes int64

	Reads       int64   // finished reads: a projection is read in pieces (resident source: per chunk)
	ReadErrors  int64   // of those, failed
	BytesRead   int64   // bytes as read, padding of direct I/O included
	BytesWanted int64   // of the experts whose reads were started, without padding: what a route trace adds up to
	ReadSeconds float64 // sum over the lanes of the wall time inside reads
	WaitSeconds float64 // wall time that the other methods blocked on reads

	Entries   int   // resident experts
	Evictions int64 // experts that made room for others
	Failed    int64 // experts removed because their read failed

	ResidentBytes int64 // memory mapped for experts, padding included; never above BudgetBytes where that is set
	BudgetBytes   int64 // 0: no budget
	Lanes         int   // reader threads; 0: none
	Direct        bool  // every file with experts is read past the page cache
}
