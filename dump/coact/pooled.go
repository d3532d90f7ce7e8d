package coact

import (
	"fmt"
	"slices"
	"strings"
)

// pool sums the layers up.
func pool(layers []*layer, reports []LayerReport, o *Options) PooledReport {
	var p PooledReport
	var freq []float64
	var picks []uint64
	top, total := uint64(0), uint64(0)
	for i, l := range layers {
		c := l.picks(false)
		picks = append(picks, c...)
		for _, n := range c {
			freq = append(freq, share(n, l.tokens))
		}
		slices.Sort(c)
		top += sum(c[max(0, len(c)-topExperts):])
		total += sum(c)
		p.Tokens += l.tokens
		p.OffDiagSum += reports[i].OffDiagSum
		p.Max = max(p.Max, reports[i].Max)
		p.NeverPicked += reports[i].NeverPicked
	}
	slices.Sort(freq)
	slices.Sort(picks)
	n := len(freq)
	p.FreqMin, p.FreqMedian, p.FreqMax = freq[0], (freq[(n-1)/2]+freq[n/2])/2, freq[n-1]
	p.Gini, p.Top16Share = gini(picks), share(top, total)
	for s := range o.Replicate {
		p.Splits = append(p.Splits, poolSplit(reports, s))
	}
	return p
}

func poolSplit(reports []LayerReport, at int) Split {
	first := &reports[0].Splits[at]
	p := Split{Replicate: first.Replicate, ExpertsACard: first.ExpertsACard,
		units: make([]uint64, len(first.units)), unitsFit: make([]uint64, len(first.units))}
	collect := func(of func(*Split) Tally) Tally {
		var ts []Tally
		for i := range reports {
			ts = append(ts, of(&reports[i].Splits[at]))
		}
		return merge(ts...)
	}
	p.Fit = collect(func(s *Split) Tally { return s.Fit })
	p.HeldOut = collect(func(s *Split) Tally { return s.HeldOut })
	p.RandomFit = collect(func(s *Split) Tally { return s.RandomFit })
	p.Random = collect(func(s *Split) Tally { return s.Random })
	p.EvenFit = collect(func(s *Split) Tally { return s.EvenFit })
	p.Even = collect(func(s *Split) Tally { return s.Even })
	by := map[string]int{}
	for i := range reports {
		s := &reports[i].Splits[at]
		by[s.By]++
		for c := range s.units {
			p.units[c] += s.units[c]
			p.unitsFit[c] += s.unitsFit[c]
		}
	}
	p.Load, p.LoadFit = shares(p.units), shares(p.unitsFit)
	var names []string
	for _, name := range []string{ByNone, ByFrequency, ByCut} {
		switch by[name] {
		case 0:
		case len(reports):
			names = append(names, name)
		default:
			names = append(names, fmt.Sprintf("%s %d", name, by[name]))
		}
	}
	p.By = strings.Join(names, ", ")
	return p
}
