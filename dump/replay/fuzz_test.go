package replay

import (
	"strings"
	"testing"

	"sluice/dump"
)

// FuzzReplay runs both replays over anything: they end with an answer that adds up or with an error.
func FuzzReplay(f *testing.F) {
	f.Add([]byte(preamble+header+"0,0,0,0,0,1,0.9,0,100,0\n0,0,0,0,1,2,0.1,0,100,0\n0,1,1,1,0,2,0.6,1,0,0\n0,1,1,1,1,3,nan,0,100,1\n"), int64(300))
	f.Add([]byte(preamble+"# slot_bytes=128,128\n# cache_bytes=256\n# drop_frac=0.5\n"+header+"0,1,0,0,0,1,0.9,0,100,0\n0,1,0,0,0,1,0.9,0,100,0\n"), int64(0))
	ahead := strings.Replace(header, ",dropped", ",ahead,ahead_bytes,dropped", 1)
	f.Add([]byte(preamble+"# slot_bytes=128,128\n# cache_bytes=512\n# prefetch=next-layer\n"+ahead+"0,1,0,0,0,1,0.9,0,100,3 4,100,0\n0,1,0,0,1,2,0.9,0,100,,,0\n0,1,0,1,0,3,0.9,2,0,,0,0\n"), int64(512))
	f.Add([]byte(preamble+"# slot_bytes=128,128\n# cache_bytes=512\n# prefetch=last-token\n# prefetch_bytes=256\n"+ahead+"0,1,0,0,0,1,0.9,0,100,3 3 9,100,0\n0,1,1,0,1,2,0.9,0,100,x,,0\n"), int64(0))
	f.Fuzz(func(t *testing.T, data []byte, budget int64) {
		trace := string(data)
		// Tables are as large as the preamble asks, within limits that are tested elsewhere; here speed matters.
		if tr, err := dump.NewTraceReader(strings.NewReader(trace)); err == nil {
			m := tr.Meta()
			if g, err := newGeometry(&m); err == nil && g.ids > 1000 || m.NUsed > 100 {
				return
			}
		}
		if r, err := Drop("x", strings.NewReader(trace), DropConfig{InPrefill: budget%2 == 1}); err == nil {
			for _, p := range []*DropPhase{&r.Decode, &r.Prefill} {
				for _, d := range p.Fracs {
					cells := int64(0)
					for _, n := range d.Survivors {
						cells += n
					}
					if cells != p.Cells || d.Dropped > p.Misses || d.Both > min(d.Dropped, p.Dropped) || !(d.Mass <= p.Mass*1.0000001) {
						t.Fatalf("%+v of %+v", d, p)
					}
				}
			}
			for i := range r.Dynamic {
				if p := r.Dynamic[i].Reproduction; p != nil && (p.DropsAgreed > p.Drops || p.BytesAgreed > p.Bytes || (p.First == "") != p.Exact()) {
					t.Fatalf("%+v", p)
				}
			}
			dropText(t, r)
		}
		for _, o := range []Order{OrderBatch, OrderLive} {
			var budgets []int64
			if budget > 0 {
				budgets = []int64{budget}
			}
			r, err := cacheString(trace, CacheConfig{Order: o, Budgets: budgets, Seed: 1})
			if err != nil {
				continue
			}
			for _, c := range r.Cells {
				for ph := range 2 {
					if n := c.phase(ph); n.Hits < 0 || n.Hits > n.Lookups {
						t.Fatalf("%+v", c)
					}
					if n := c.phase(ph); o == OrderBatch && c.Policy == "lru" && r.Curve.Exact && n.Hits != r.Curve.Hits(ph, c.BudgetBytes) {
						t.Fatalf("phase %d: %d hits, the curve says %d", ph, n.Hits, r.Curve.Hits(ph, c.BudgetBytes))
					}
				}
			}
			cacheText(t, r)
		}
	})
}
