package coact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"sluice/dump"
)

// survey is what the first pass learns: the shape of the dump.
type survey struct {
	records uint64
	bytes   int64
	torn    *dump.TornError // nil: the dump ends with a whole record
	tokens  [256]uint64     // by layer
	topK    [256]int        // by layer; 0 where there is no token
}

// layers lists those that have tokens.
func (s *survey) layers() []int {
	var ls []int
	for l, n := range s.tokens {
		if n > 0 {
			ls = append(ls, l)
		}
	}
	return ls
}

// look reads the dump from its beginning and checks every record against the options, so that later passes count
// without looking back.
func look(ctx context.Context, in io.ReadSeeker, o *Options) (*survey, error) {
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("coact: the dump is read three times and this input cannot be rewound (a pipe? write it to a file first): %w", err)
	}
	s := &survey{}
	seen := make([]uint64, o.Experts) // number of the last record with this expert
	r := dump.NewSelReader(in)
	for {
		at := r.Offset()
		rec, err := r.Next()
		if err != nil {
			s.records, s.bytes = r.Records(), r.Offset()
			if !errors.As(err, &s.torn) && err != io.EOF {
				return nil, fmt.Errorf("coact: %w", err)
			}
			return s, s.usable()
		}
		n := r.Records()
		if n&0xffff == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if msg := s.add(o, &rec, seen, n); msg != "" {
			return nil, fmt.Errorf("coact: record %d at byte %d: layer %d: %s", n-1, at, rec.Layer, msg)
		}
	}
}

// add takes one record, the n-th, and returns what is wrong with it.
func (s *survey) add(o *Options, rec *dump.SelRecord, seen []uint64, n uint64) string {
	if o.NLayer > 0 && rec.Layer >= o.NLayer {
		return fmt.Sprintf("the model has layers 0..%d", o.NLayer-1)
	}
	k := len(rec.Expert)
	switch have := s.topK[rec.Layer]; have {
	case k:
	case 0:
		s.topK[rec.Layer] = k
	default:
		return fmt.Sprintf("%d experts for this token, %d for the %d before it: mixed top-k has no common answer; record one top-k per file",
			k, have, s.tokens[rec.Layer])
	}
	s.tokens[rec.Layer]++
	if s.tokens[rec.Layer] > math.MaxInt32 {
		return fmt.Sprintf("more than %d tokens", math.MaxInt32) // pair counts are 32 bits
	}
	for i, e := range rec.Expert {
		if int(e) >= len(seen) {
			return fmt.Sprintf("slot %d: expert %d, want 0..%d: another model, or not a %s file", i, e, len(seen)-1, dump.SelFormat)
		}
		if seen[e] == n {
			return fmt.Sprintf("slot %d: expert %d a second time: no router picks it twice; not a %s file", i, e, dump.SelFormat)
		}
		seen[e] = n
	}
	return ""
}

func (s *survey) usable() error {
	if s.records > 0 {
		return nil
	}
	if s.torn != nil {
		return fmt.Errorf("coact: no whole record: %w", s.torn)
	}
	return errors.New("coact: empty: no records")
}

// notes tells what a reader of the figures must know about the dump.
func (s *survey) notes(layers []*layer) []string {
	var notes []string
	if s.torn != nil {
		notes = append(notes, fmt.Sprintf("torn tail: %d whole records used, torn at byte %d", s.records, s.torn.Offset))
	}
	lo, hi := layers[0], layers[0]
	var ks []int
	for _, l := range layers {
		if l.tokens < lo.tokens {
			lo = l
		}
		if l.tokens > hi.tokens {
			hi = l
		}
		if !slices.Contains(ks, l.k) {
			ks = append(ks, l.k)
		}
	}
	if lo.tokens != hi.tokens {
		notes = append(notes, fmt.Sprintf("layers do not have the same number of tokens: layer %d has %d, layer %d has %d",
			lo.index, lo.tokens, hi.index, hi.tokens))
	}
	if len(ks) > 1 {
		notes = append(notes, fmt.Sprintf("top-k differs between layers: %v", ks))
	}
	if lo.tokens < minTokens {
		notes = append(notes, fmt.Sprintf("layer %d has %d tokens: with fewer than %d a split is fitted to noise", lo.index, lo.tokens, minTokens))
	}
	return notes
}

const minTokens = 100
