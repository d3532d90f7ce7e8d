package view

// DefaultCells bounds the cells of a page's largest table, layers x experts x time. A quarter of it bounds the table of
// layers x experts and an eighth the one of layers x time.
const DefaultCells = 1 << 20

// maxBins is as fine as time gets: about the width of a screen.
const maxBins = 512

// grid says how experts and time are put together where there are more than a page can hold.
type grid struct {
	perCell             int // experts in one cell, consecutive ids
	expertCells         int
	timeTicks, timeBins int64 // ticks in one bin, and bins, of the tables over time
	partTicks, partBins int64 // the same of the table over experts and time
}

func newGrid(layers, experts int, ticks int64, cells int) grid {
	g := grid{perCell: max(1, ceil(layers*experts, cells/4))}
	g.expertCells = ceil(experts, g.perCell)
	g.timeTicks, g.timeBins = bins(ticks, min(maxBins, int64(cells/8/layers)))
	g.partTicks, g.partBins = bins(ticks, min(maxBins, int64(cells/(layers*g.expertCells))))
	return g
}

// bins divides ticks into at most n parts of equal width, the last one perhaps narrower.
func bins(ticks, n int64) (width, count int64) {
	n = max(n, 1)
	width = max(1, (ticks+n-1)/n)
	return width, (ticks + width - 1) / width
}

func ceil(a, b int) int { return (a + b - 1) / max(b, 1) }
