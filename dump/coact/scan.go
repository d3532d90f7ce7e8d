package coact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"sluice/dump"
)

// batch is consecutive tokens of one layer. Records of a decode run change layer at every token; counting a layer's
// tokens in batches keeps one layer's counts in the processor's cache at a time.
type batch struct {
	layer *layer
	first uint64   // number of the first token within the layer
	ids   []uint16 // tokens x k
}

const (
	batchIDs   = 16 << 10 // ids of one batch: 32 KiB
	queueDepth = 4        // batches that wait for one worker
)

var errChanged = errors.New("coact: the dump changed while it was read")

// scan reads the surveyed records once more and calls do with batches of the analysed layers: those of one layer in
// the order of the file, always on the same goroutine; different layers at the same time.
func (a *analysis) scan(ctx context.Context, do func(*batch)) error {
	if _, err := a.in.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("coact: %w", err)
	}
	workers := min(a.threads, len(a.layers))
	free := make(chan *batch, len(a.layers)+workers*(queueDepth+1)+1)
	for range cap(free) {
		free <- &batch{ids: make([]uint16, 0, batchIDs)}
	}
	queues := make([]chan *batch, workers)
	var wg sync.WaitGroup
	for i := range queues {
		queues[i] = make(chan *batch, queueDepth)
		wg.Go(func() {
			for b := range queues[i] {
				do(b)
				free <- b
			}
		})
	}
	err := a.feed(ctx, free, queues)
	for _, q := range queues {
		close(q)
	}
	wg.Wait()
	return err
}

func (a *analysis) feed(ctx context.Context, free chan *batch, queues []chan *batch) error {
	var open [256]*batch
	send := func(b *batch) { queues[b.layer.at%len(queues)] <- b }
	r := dump.NewSelReader(a.in)
	for range a.survey.records {
		rec, err := r.Next()
		if err != nil {
			return fmt.Errorf("%w: %w", errChanged, err)
		}
		l := a.byIndex[rec.Layer]
		if l == nil {
			continue
		}
		if len(rec.Expert) != l.k {
			return errChanged
		}
		b := open[rec.Layer]
		if b == nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			b = <-free
			b.layer, b.first, b.ids = l, l.next, b.ids[:0]
			open[rec.Layer] = b
		}
		for _, e := range rec.Expert {
			if int(e) >= a.o.Experts {
				return errChanged
			}
			b.ids = append(b.ids, uint16(e))
		}
		l.next++
		if len(b.ids)+l.k > batchIDs {
			send(b)
			open[rec.Layer] = nil
		}
	}
	for _, l := range a.layers {
		if l.next != l.tokens {
			return errChanged
		}
		l.next = 0
		if b := open[l.index]; b != nil {
			send(b)
		}
	}
	return nil
}

// eachLayer calls fn once per layer on the analysis' threads.
func (a *analysis) eachLayer(ctx context.Context, fn func(*layer)) error {
	next := make(chan *layer)
	var wg sync.WaitGroup
	for range min(a.threads, len(a.layers)) {
		wg.Go(func() {
			for l := range next {
				fn(l)
			}
		})
	}
	for _, l := range a.layers {
		if ctx.Err() != nil {
			break
		}
		next <- l
	}
	close(next)
	wg.Wait()
	return ctx.Err()
}
