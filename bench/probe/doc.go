// Package probe measures what the machine it runs on can do: how fast threads read memory, by the kind of page that
// backs it, and how many operations the engine's own product kernels reach on data that stays in the cache. The two are
// the ceilings that measured speeds are set beside.
//
// Memory is read the way decode reads weights: each thread walks its own contiguous part once per pass, with 64-bit loads
// and nothing else to do. Three kinds of page are told apart, because weights may lie on any of them:
//
//	4k     anonymous memory that was refused huge pages
//	huge   anonymous memory that asked for them (Memory.HugeBytes says how much got them)
//	file   a shared read-only mapping of a file whose pages are in the page cache
//
// MeasureIO reads a file past the page cache, the ceiling of experts that are streamed. It is no latency or write benchmark.
package probe
