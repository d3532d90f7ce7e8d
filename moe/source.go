package moe

// Source hands out experts' weights. One Source serves one session: its methods are not safe for concurrent calls, while
// several sources may stand on one Layout.
//
// A layer call goes: Residency, then until no expert is left Demand, Expert for each, Release. No decision depends on
// when a read finishes: residency is a function of the sequence of Demand calls and of the configuration alone.
// Demand, Expert and Release do not allocate unless they return an error.
type Source interface {
	// Residency writes for each expert of the layer 0 (would have to be read) or 1 (resident), as of before the call; an
	// expert is resident from the Demand that demanded it. len(dst) is the layer's number of experts.
	Residency(layer int, dst []uint8)

	// Demand holds the first n >= 1 of the experts (ascending, distinct ids), the longest prefix that fits in the budget
	// together, and starts the reads of those that are not resident. The caller passes the rest on the next Demand. It is
	// an error to Demand while experts are held, or when not even one expert fits. No experts: 0, nil.
	Demand(layer int, experts []int32) (n int, err error)

	// Expert returns the i-th expert of the last Demand, 0 <= i < n, and blocks until it is in memory. The weights are
	// the source's and valid until Release. After a failed read the error names the file, the offset, and the bytes got
	// and wanted; the expert leaves the cache at Release, and a later Demand reads it again.
	Expert(i int) (Expert, error)

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

// Stats are a source's counters. They hold at any time:
//
//	Demanded == Hits + Misses
//	Entries  == Misses - Evictions - Failed   (cached source)
type Stats struct {
	Demanded int64 // experts held by Demand calls
	Hits     int64 // of those, resident before the call
	Misses   int64 // of those, not resident before the call

	Reads       int64   // finished reads, one per projection (resident source: per chunk)
	ReadErrors  int64   // of those, failed
	BytesRead   int64   // bytes as read, padding of direct I/O included
	ReadSeconds float64 // sum over the lanes of the wall time inside reads
	WaitSeconds float64 // wall time that Expert and Demand blocked on reads

	Entries   int   // resident experts
	Evictions int64 // experts that made room for others
	Failed    int64 // experts removed because their read failed

	ResidentBytes int64 // memory mapped for experts, padding included; never above BudgetBytes where that is set
	BudgetBytes   int64 // 0: no budget
	Lanes         int   // reader threads; 0: none
	Direct        bool  // every file with experts is read past the page cache
}
