package store

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "renew the golden files instead of comparing with them")

// TestCacheTraces replays recorded demands. A line of a trace is one of
//
//	cache policy=P budget=BYTES layers=EXPERTSxSLOTBYTES,...
//	LAYER: EXPERT ... | EXPERT:hit|ahead|miss ... [evict LAYER/EXPERT ...]
//	prefetch BYTES LAYER: EXPERT ... [held LAYER: EXPERT ...] | EXPERT ... [evict LAYER/EXPERT ...]
//	remove LAYER/EXPERT
//	error LAYER: EXPERT ... | message
//
// and what stands behind the bar is what the cache is to do. Fewer experts behind the bar than before it: a wave.
func TestCacheTraces(t *testing.T) {
	paths, err := filepath.Glob("testdata/cache/*")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no traces: %v", err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var c *Cache
			var out strings.Builder
			for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
				got := replayLine(t, &c, line)
				if got != line && !*update {
					t.Errorf("%s:%d:\ngot  %s\nwant %s", path, i+1, got, line)
				}
				fmt.Fprintln(&out, got)
			}
			if *update {
				if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func replayLine(t *testing.T, c **Cache, line string) string {
	ask, _, _ := strings.Cut(line, "|")
	ask = strings.TrimRight(ask, " ")
	words := strings.Fields(ask)
	switch {
	case len(words) == 0 || words[0] == "#":
		return line
	case words[0] == "cache":
		*c = parseCache(t, words[1:])
		return line
	case words[0] == "remove":
		var layer, e int
		if _, err := fmt.Sscanf(words[1], "%d/%d", &layer, &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		(*c).Remove((*c).ID(layer, e))
		return line
	}
	if words[0] == "error" {
		words = words[1:]
	}
	var did []string
	done := func() string {
		for i, id := range (*c).Evicted() {
			if i == 0 {
				did = append(did, "evict")
			}
			l, e := (*c).Locate(id)
			did = append(did, fmt.Sprintf("%d/%d", l, e))
		}
		(*c).Release()
		return ask + " | " + strings.Join(did, " ")
	}
	if words[0] == "prefetch" {
		maxBytes, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		words = words[2:]
		if i := slices.Index(words, "held"); i >= 0 {
			layer, ids := parseExperts(t, words[i+1:])
			if n, err := (*c).Demand(layer, ids); n != len(ids) || err != nil {
				t.Fatalf("%q: %d held, %v", line, n, err)
			}
			words = words[:i]
		}
		layer, ids := parseExperts(t, words)
		if err := (*c).Prefetch(layer, ids, maxBytes); err != nil {
			return ask + " | " + err.Error()
		}
		for _, id := range (*c).Ahead() {
			did = append(did, strconv.Itoa(int(id-(*c).ID(layer, 0))))
		}
		return done()
	}
	layer, ids := parseExperts(t, words)
	was := make([]uint8, (*c).layers[min(layer, len((*c).layers)-1)].Experts)
	if layer < len((*c).layers) {
		(*c).Residency(layer, was)
	}
	n, err := (*c).Demand(layer, ids)
	if err != nil {
		return ask + " | " + err.Error()
	}
	for i := range n {
		if (was[ids[i]] == 0) != (*c).Missed()[i] {
			t.Errorf("%q: residency %d of expert %d", line, was[ids[i]], ids[i])
		}
		did = append(did, fmt.Sprintf("%d:%s", ids[i], []string{"miss", "hit", "ahead"}[was[ids[i]]]))
	}
	return done()
}

// parseExperts reads "LAYER: EXPERT ...".
func parseExperts(t *testing.T, words []string) (layer int, ids []int32) {
	t.Helper()
	for i, w := range words {
		n, err := strconv.Atoi(strings.TrimSuffix(w, ":"))
		if err != nil {
			t.Fatalf("%q: %v", words, err)
		}
		if i == 0 {
			layer = n
		} else {
			ids = append(ids, int32(n))
		}
	}
	return layer, ids
}

func parseCache(t *testing.T, words []string) *Cache {
	var policy string
	var budget int64
	var layers []CacheLayer
	ids := 0
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "policy":
			policy = value
		case "budget":
			budget, _ = strconv.ParseInt(value, 10, 64)
		case "layers":
			for _, s := range strings.Split(value, ",") {
				var l CacheLayer
				if _, err := fmt.Sscanf(s, "%dx%d", &l.Experts, &l.SlotBytes); err != nil {
					t.Fatalf("%q: %v", w, err)
				}
				ids += l.Experts
				layers = append(layers, l)
			}
		}
	}
	p, err := NewPolicy(policy, ids, budget)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCache(p, budget, layers)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// plainCache is the cache in the plainest form: slices that are searched.
type plainCache struct {
	policy               string
	budget               int64
	layers               []CacheLayer
	probation, protected [][2]int // (layer, expert), the first is evicted first; lru uses probation alone
	ahead                map[[2]int]bool
	uses                 []plainUse // lrfu
	used, wasted         int64
}

func (c *plainCache) bytes(list [][2]int) (sum int64) {
	for _, e := range list {
		sum += c.layers[e[0]].SlotBytes
	}
	return sum
}

func (c *plainCache) resident(e [2]int) bool {
	return slices.Contains(c.probation, e) || slices.Contains(c.protected, e)
}

func (c *plainCache) remove(e [2]int) {
	is := func(x [2]int) bool { return x == e }
	c.probation, c.protected = slices.DeleteFunc(c.probation, is), slices.DeleteFunc(c.protected, is)
	if c.ahead[e] {
		delete(c.ahead, e)
		c.wasted++
	}
}

// plainUse is one use of an expert, in the order of uses.
type plainUse = [2]int

// insert adds an expert as used now.
func (c *plainCache) insert(e [2]int) {
	c.uses = append(c.uses, e)
	c.probation = append(c.probation, e)
	if c.policy != "lrfu" {
		return
	}
	half := 0
	for _, l := range c.layers {
		half += lrfuHalfLife * l.Experts
	}
	score := func(e [2]int) (sum float64) {
		for i, use := range c.uses {
			if use == e {
				sum += math.Pow(1+0.6931471805599453/float64(half), float64(i-len(c.uses)))
			}
		}
		return sum
	}
	scores := map[[2]int]float64{}
	for _, e := range c.probation {
		scores[e] = score(e)
	}
	slices.SortFunc(c.probation, func(a, b [2]int) int {
		return cmp.Or(cmp.Compare(scores[a], scores[b]), cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
	})
}

func (c *plainCache) touch(e [2]int) {
	c.remove(e)
	if c.policy != "slru" {
		c.insert(e)
		return
	}
	c.protected = append(c.protected, e)
	for c.bytes(c.protected) > int64(float64(c.budget)*0.8) {
		c.probation = append(c.probation, c.protected[0])
		c.protected = c.protected[1:]
	}
}

func (c *plainCache) demand(layer int, ids []int32) (missed []bool, evicted [][2]int) {
	slot := c.layers[layer].SlotBytes
	n := 0
	for n < len(ids) && int64(n+1)*slot <= c.budget {
		n++
	}
	within := func(e [2]int, ids []int32) bool { return e[0] == layer && slices.Contains(ids, int32(e[1])) }
	for _, id := range ids[:n] {
		e := [2]int{layer, int(id)}
		missed = append(missed, !c.resident(e))
		switch {
		case c.ahead[e]:
			delete(c.ahead, e)
			c.used++
			c.remove(e)
			c.insert(e)
		case c.resident(e):
			c.touch(e)
		}
	}
	for i, id := range ids[:n] {
		if !missed[i] {
			continue
		}
		for c.bytes(c.probation)+c.bytes(c.protected)+slot > c.budget {
			order := slices.Concat(c.probation, c.protected)
			victim := slices.IndexFunc(order, func(e [2]int) bool { return !within(e, ids[:n]) })
			evicted = append(evicted, order[victim])
			c.remove(order[victim])
		}
		c.insert([2]int{layer, int(id)})
	}
	return missed, evicted
}

// prefetch while (layer, expert) of held are held.
func (c *plainCache) prefetch(layer int, ids []int32, maxBytes int64, held [][2]int) (ahead, evicted [][2]int) {
	slot := c.layers[layer].SlotBytes
	for _, id := range ids {
		e := [2]int{layer, int(id)}
		if c.resident(e) {
			continue
		}
		if maxBytes -= slot; maxBytes < 0 {
			break
		}
		for c.bytes(c.probation)+c.bytes(c.protected)+slot > c.budget {
			order := slices.Concat(c.probation, c.protected)
			victim := slices.IndexFunc(order, func(e [2]int) bool {
				return !slices.Contains(held, e) && !(e[0] == layer && slices.Contains(ids, int32(e[1])))
			})
			if victim < 0 {
				return ahead, evicted
			}
			evicted = append(evicted, order[victim])
			c.remove(order[victim])
		}
		c.insert(e)
		c.ahead[e] = true
		ahead = append(ahead, e)
	}
	return ahead, evicted
}

// pairs returns the layers and experts of ids.
func (c *Cache) pairs(ids []int32) (out [][2]int) {
	for _, id := range ids {
		l, e := c.Locate(id)
		out = append(out, [2]int{l, e})
	}
	return out
}

func TestCacheAgainstPlain(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 7))
		policy := Policies()[seed%3]
		var layers []CacheLayer
		ids, largest := 0, int64(0)
		for range 1 + rng.IntN(5) {
			l := CacheLayer{Experts: rng.IntN(20), SlotBytes: 10 * (1 + rng.Int64N(6))}
			layers = append(layers, l)
			ids += l.Experts
			largest = max(largest, l.SlotBytes)
		}
		budget := largest + 10*rng.Int64N(80)
		p, err := NewPolicy(policy, ids, budget)
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewCache(p, budget, layers)
		if err != nil {
			t.Fatal(err)
		}
		plain := &plainCache{policy: policy, budget: budget, layers: layers, ahead: map[[2]int]bool{}}
		var removed int64
		for step := range 300 {
			layer := rng.IntN(len(layers))
			if layers[layer].Experts == 0 {
				continue
			}
			list := someExperts(rng, layers[layer].Experts, 1+rng.IntN(layers[layer].Experts))
			for len(list) > 0 {
				n, err := c.Demand(layer, list)
				if err != nil {
					t.Fatal(err)
				}
				missed, evicted := plain.demand(layer, list)
				got := c.pairs(c.Evicted())
				if !slices.Equal(c.Missed(), missed) || !slices.Equal(got, evicted) {
					t.Fatalf("seed %d step %d layer %d demand %v: missed %v evicted %v, want %v %v",
						seed, step, layer, list, c.Missed(), got, missed, evicted)
				}
				if next := rng.IntN(len(layers)); rng.IntN(3) == 0 && layers[next].Experts > 0 {
					want := someExperts(rng, layers[next].Experts, 1+rng.IntN(layers[next].Experts))
					rng.Shuffle(len(want), func(i, j int) { want[i], want[j] = want[j], want[i] })
					maxBytes := rng.Int64N(2 * budget)
					if err := c.Prefetch(next, want, maxBytes); err != nil {
						t.Fatal(err)
					}
					ahead, evicted := plain.prefetch(next, want, maxBytes, c.pairs(c.Held()))
					if !slices.Equal(c.pairs(c.Ahead()), ahead) || !slices.Equal(c.pairs(c.Evicted()), evicted) {
						t.Fatalf("seed %d step %d layer %d prefetch %v of %d: ahead %v evicted %v, want %v %v",
							seed, step, next, want, maxBytes, c.pairs(c.Ahead()), c.pairs(c.Evicted()), ahead, evicted)
					}
				}
				c.Release()
				list = list[n:]
			}
			if rng.IntN(4) == 0 { // a read failed
				e := rng.IntN(layers[layer].Experts)
				if plain.resident([2]int{layer, e}) {
					plain.remove([2]int{layer, e})
					c.Remove(c.ID(layer, e))
					removed++
				}
			}
			for l := range layers {
				dst := make([]uint8, layers[l].Experts)
				c.Residency(l, dst)
				for e, r := range dst {
					if at := [2]int{l, e}; (r > 0) != plain.resident(at) || (r == 2) != plain.ahead[at] {
						t.Fatalf("seed %d step %d: residency of %d/%d: %d", seed, step, l, e, r)
					}
				}
			}
			st := c.Stats()
			if st.UsedBytes > budget || st.UsedBytes != plain.bytes(plain.probation)+plain.bytes(plain.protected) ||
				int64(st.Entries) != st.Misses+st.Prefetched-st.Evictions-removed || st.PrefetchUsed != plain.used || st.PrefetchWasted != plain.wasted ||
				st.Prefetched != plain.used+plain.wasted+int64(len(plain.ahead)) || st.Entries != len(plain.probation)+len(plain.protected) {
				t.Fatalf("seed %d step %d: %+v, budget %d, removed %d", seed, step, st, budget, removed)
			}
		}
	}
}

func TestCacheAbort(t *testing.T) {
	c := parseCache(t, []string{"policy=slru", "budget=40", "layers=8x10"})
	for _, ids := range [][]int32{{0, 1, 2}, {0}} {
		if _, err := c.Demand(0, ids); err != nil {
			t.Fatal(err)
		}
		c.Release()
	}
	before := c.Stats()
	if _, err := c.Demand(0, []int32{1, 4, 5}); err != nil {
		t.Fatal(err)
	}
	c.Abort()
	after := c.Stats()
	// 2 went to make room and stays away; 4 and 5 never came.
	if after.Hits != before.Hits || after.Misses != before.Misses || after.Evictions != 1 || after.Entries != 2 || after.UsedBytes != 20 {
		t.Errorf("got %+v, before %+v", after, before)
	}
	if n, err := c.Demand(0, []int32{1, 4}); n != 2 || err != nil || c.Missed()[0] || !c.Missed()[1] {
		t.Errorf("demand after abort: %d, %v, %v", n, err, c.Missed())
	}
}

func TestCacheBadInput(t *testing.T) {
	if _, err := NewPolicy("lur", 4, 10); err == nil || err.Error() != `moe: unknown cache policy "lur": want one of lru, slru, lrfu` {
		t.Errorf("got %v", err)
	}
	for _, budget := range []int64{0, -1} {
		if _, err := NewCache(newLRU(1), budget, []CacheLayer{{1, 1}}); err == nil {
			t.Errorf("budget %d taken", budget)
		}
	}
	for _, l := range []CacheLayer{{-1, 1}, {1, 0}, {1, -1}} {
		if _, err := NewCache(newLRU(1), 10, []CacheLayer{l}); err == nil {
			t.Errorf("layer %+v taken", l)
		}
	}
	c := parseCache(t, []string{"policy=lru", "budget=40", "layers=8x10"})
	for _, tc := range []struct {
		layer int
		ids   []int32
	}{{-1, []int32{1}}, {1, []int32{1}}, {0, []int32{-1}}, {0, []int32{8}}, {0, []int32{2, 2}}, {0, []int32{3, 2}}} {
		if n, err := c.Demand(tc.layer, tc.ids); err == nil || n != 0 {
			t.Errorf("%+v: got %d, %v", tc, n, err)
		}
	}
	for _, tc := range []struct {
		layer int
		ids   []int32
	}{{-1, []int32{1}}, {1, []int32{1}}, {0, []int32{-1}}, {0, []int32{8}}, {0, []int32{2, 8}}} {
		if err := c.Prefetch(tc.layer, tc.ids, 40); err == nil {
			t.Errorf("prefetch %+v taken", tc)
		}
	}
	if st := c.Stats(); st != (CacheStats{BudgetBytes: 40}) {
		t.Errorf("refused demands left %+v", st)
	}
}

func BenchmarkCacheDemand(b *testing.B) {
	for _, policy := range Policies() {
		for _, percent := range []int64{10, 50, 100} {
			b.Run(fmt.Sprintf("policy=%s/budget_percent=%d", policy, percent), func(b *testing.B) {
				const nLayer, nExpert, k = 48, 128, 8
				layers := make([]CacheLayer, nLayer)
				for i := range layers {
					layers[i] = CacheLayer{nExpert, 4096}
				}
				budget := percent * nLayer * nExpert * 4096 / 100
				p, _ := NewPolicy(policy, nLayer*nExpert, budget)
				c, _ := NewCache(p, budget, layers)
				rng := rand.New(rand.NewPCG(3, 4))
				demands := make([][]int32, 4096)
				for i := range demands {
					demands[i] = someExperts(rng, nExpert, k)
				}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					if _, err := c.Demand(i%nLayer, demands[i%len(demands)]); err != nil {
						b.Fatal(err)
					}
					c.Release()
					i++
				}
			})
		}
	}
}
