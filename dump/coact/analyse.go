package coact

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
)

type analysis struct {
	o       *Options
	in      io.ReadSeeker
	threads int
	survey  *survey
	layers  []*layer
	byIndex [256]*layer
}

// Analyse reads a selection dump, from its beginning and three times, and answers Options. A torn tail is a note of the
// report, as are layers of different length; everything else that is not a sound dump of one model and one top-k is an
// error that names record, byte and layer. The input must not shrink meanwhile; records appended after the first pass
// are not looked at. Memory: 8 bytes per layer and pair of experts (refused above 320 MiB), nothing per record.
func Analyse(ctx context.Context, in io.ReadSeeker, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	a := &analysis{o: &o, in: in, threads: o.Threads}
	if a.threads == 0 {
		a.threads = runtime.GOMAXPROCS(0)
	}
	var err error
	if a.survey, err = look(ctx, in, &o); err != nil {
		return nil, err
	}
	if err := a.allocate(); err != nil {
		return nil, err
	}
	if err := a.scan(ctx, func(b *batch) { b.layer.count(b) }); err != nil {
		return nil, err
	}
	err = a.eachLayer(ctx, func(l *layer) {
		l.settle()
		l.plan(&o)
		l.scorer = l.newScorer(o.Cards)
	})
	if err != nil {
		return nil, err
	}
	if err := a.scan(ctx, func(b *batch) { b.layer.score(b, o.Cards) }); err != nil {
		return nil, err
	}
	r := &Report{Format: ReportFormat, Records: a.survey.records, Bytes: a.survey.bytes, Experts: o.Experts, Cards: o.Cards,
		FitShare: float64(fitTokens(10)) / 10, Notes: append([]string{}, a.survey.notes(a.layers)...), layers: a.layers}
	for _, l := range a.layers {
		r.Layers = append(r.Layers, l.report(&o))
	}
	r.Pooled = pool(a.layers, r.Layers, &o)
	r.decide()
	return r, nil
}

// allocate makes the layers that are to be analysed.
func (a *analysis) allocate() error {
	have := a.survey.layers()
	want := a.o.Layers
	if want == nil {
		want = have
	}
	n := a.o.Experts
	if need := int64(len(want)) * int64(n) * int64(n) * 8; need > maxPairBytes {
		return fmt.Errorf("coact: pair counts of %d layers of %d experts need %d MiB, at most %d: analyse fewer layers at a time",
			len(want), n, need>>20, maxPairBytes>>20)
	}
	for _, index := range want {
		if a.survey.tokens[index] == 0 {
			return fmt.Errorf("coact: layer %d has no records (have layers %v)", index, have)
		}
	}
	for _, index := range have { // ascending, whatever the order asked
		if a.o.Layers != nil && !slices.Contains(a.o.Layers, index) {
			continue
		}
		l := &layer{index: index, at: len(a.layers), n: n, k: a.survey.topK[index], tokens: a.survey.tokens[index],
			pairs: make([]uint32, n*n), fitPairs: make([]uint32, n*n)}
		l.fit = fitTokens(l.tokens)
		a.layers = append(a.layers, l)
		a.byIndex[index] = l
	}
	return nil
}
