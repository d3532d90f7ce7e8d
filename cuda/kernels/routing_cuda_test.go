//go:build cuda

package kernels_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sluice/cuda/driver"
	dev "sluice/cuda/kernels"
	"sluice/kernels"
	"sluice/moe"
)

// routing is a call's memory on the device.
type routing struct {
	c                      *moe.Call
	tap                    dev.Tap
	tab                    dev.Table
	logits, bias, resident dev.Ptr
	rows                   dev.Ptr
}

// layRouting allocates for c, the table for up to maxT rows.
func layRouting(t testing.TB, c *moe.Call, maxT int) *routing {
	t.Helper()
	n, k := c.Router.NExpert, c.Router.NUsed
	g := &routing{c: c, tap: dev.Tap{Layers: 1, K: k, MaxT: maxT}}
	g.tap.Base = alloc(t, g.tap.Bytes())
	g.tab = dev.NewTable(alloc(t, dev.TableBytes(n, k, maxT)), n, k, maxT)
	store(t, g.tab.Err, []uint64{0})
	store(t, g.tab.Sums, make([]byte, dev.SumsBytes))
	g.logits = upload(t, c.Logits)
	if c.Router.Bias != nil {
		g.bias = upload(t, c.Router.Bias)
	}
	if c.Resident != nil {
		g.resident = upload(t, c.Resident)
	}
	if c.Exempt != nil {
		rows := make([]dev.Row, c.T)
		for i, exempt := range c.Exempt {
			rows[i] = dev.Row{Pos: i, Token: -1, Exempt: exempt}
		}
		g.rows = upload(t, putRows(rows))
	}
	return g
}

// launches are the call's two launches.
func (g *routing) launches() []dev.Launch {
	ids, weights := g.tap.IDs(0), g.tap.Weights(0)
	return []dev.Launch{
		dev.Route(g.c.Router, ids, weights, g.tab.Err, g.logits, g.bias, g.c.Layer, g.c.T),
		g.tab.DropTable(ids, weights, g.resident, g.c.Drop, g.rows, g.c.T),
	}
}

// diff holds what the launches left to what an arm left in c, with want the arm's error. It names what differs, or "".
func (g *routing) diff(t testing.TB, want error) string {
	t.Helper()
	c, n, k := g.c, g.c.Router.NExpert, g.c.Router.NUsed
	expert, weight := make([]int32, c.T*k), make([]float32, c.T*k)
	if err := g.tap.Decode(download[byte](t, g.tap.Base, int(g.tap.Bytes())), 0, c.T, n, expert, weight); err != nil {
		return err.Error() // also after an error: ids are always in range
	}
	var got string
	if e := dev.DecodeRouteError(download[uint64](t, g.tab.Err, 1)[0], c.Pos0); e != nil {
		got = e.Error()
	}
	if want != nil {
		if got != want.Error() {
			return fmt.Sprintf("error %q, want %q", got, want)
		}
		return ""
	}
	if got != "" {
		return got
	}
	if !slices.Equal(expert, c.Sel.Expert) {
		return fmt.Sprintf("ids\n%v, want\n%v", expert, c.Sel.Expert)
	}
	if i := firstBit(weight, c.Sel.Weight); i >= 0 {
		return fmt.Sprintf("weight %d: %x, want %x", i, weight[i], c.Sel.Weight[i])
	}
	for i, d := range download[uint8](t, g.tab.Dropped, c.T*k) {
		if (d != 0) != c.Sel.Dropped[i] || d > 1 {
			return fmt.Sprintf("slot %d: dropped %d, want %v", i, d, c.Sel.Dropped[i])
		}
	}
	table := readTable(g.tab, download[byte](t, g.tab.Offsets, int(g.tab.EncodedBytes())), c.T)
	if d := wantTable(g.tab, c.Table, c.T).diff(table); d != "" {
		return fmt.Sprintf("%s\n%+v, want\n%+v", d, table, wantTable(g.tab, c.Table, c.T))
	}
	sums, _, _ := dev.DecodeSums(download[byte](t, g.tab.Sums, dev.SumsBytes))
	if want := (dev.Sums{Routed: int64(c.Routed), Dropped: int64(c.Dropped), Mass: c.Mass, MassDropped: c.MassDropped}); sums != want {
		return fmt.Sprintf("sums %+v, want %+v", sums, want)
	}
	return ""
}

// firstBit is the first index at which a and b differ in a bit, or -1.
func firstBit(a, b []float32) int {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i
		}
	}
	return -1
}

// checkRouting runs c on the device and holds it to both arms of the CPU. It returns the arms' error.
func checkRouting(t *testing.T, c *moe.Call, maxT int, what string) (err error) {
	t.Helper()
	n, k := c.Router.NExpert, c.Router.NUsed
	g := layRouting(t, c, maxT)
	run(t, g.launches()...)
	for _, a := range []moe.Arm{moe.NewHostArm(n, k, c.T), moe.NewTableArm(n, k, c.T)} {
		err = a.Route(c)
		if d := g.diff(t, err); d != "" {
			t.Fatalf("%s arm: %s\n%+v, %d rows, drop %+v, %s", a.Name(), d, *c.Router, c.T, c.Drop, what)
		}
	}
	return err
}

func TestCUDARouting(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	drops, calls := 0, 250
	if long() {
		calls = 5000
	}
	for i := range calls {
		r := randomRouter(rng, 90)
		if err := r.Validate(); err != nil {
			t.Fatal(err)
		}
		rows := 1 + rng.IntN(9)
		if rng.IntN(12) == 0 {
			rows = 30 + rng.IntN(40)
		}
		c := randomCall(rng, &r, rows)
		t.Run(fmt.Sprint(i), func(t *testing.T) { checkRouting(t, c, rows+rng.IntN(2)*rng.IntN(40), "") })
		drops += c.Dropped
	}
	if drops < calls {
		t.Errorf("%d drops: the draw hardly exercises them", drops)
	}
}

// modelRouters are the routers of models in use, by (experts, used).
var modelRouters = []moe.Router{
	{NExpert: 8, NUsed: 2, Norm: true},                      // mixtral
	{NExpert: 8, NUsed: 2, Gating: moe.GatingSoftmaxTopK},   // mixtral as published
	{NExpert: 16, NUsed: 4, Norm: true},                     // dbrx
	{NExpert: 60, NUsed: 4},                                 // qwen2moe
	{NExpert: 64, NUsed: 6, Scale: 1},                       // deepseek v2 lite
	{NExpert: 64, NUsed: 8},                                 // olmoe
	{NExpert: 72, NUsed: 10, Norm: true},                    // granite
	{NExpert: 128, NUsed: 8, Norm: true},                    // qwen3moe
	{NExpert: 128, NUsed: 4, Gating: moe.GatingSoftmaxTopK}, // gpt-oss
	{NExpert: 128, NUsed: 8, Gating: moe.GatingSigmoid, Norm: true, Bias: make([]float32, 128)},                                         // glm4moe
	{NExpert: 160, NUsed: 6, Scale: 16, NGroup: 8, NGroupUsed: 3},                                                                       // deepseek v2
	{NExpert: 256, NUsed: 8, Gating: moe.GatingSigmoid, Norm: true, Scale: 2.5, Bias: make([]float32, 256), NGroup: 8, NGroupUsed: 4},   // deepseek v3
	{NExpert: 384, NUsed: 8, Gating: moe.GatingSigmoid, Norm: true, Scale: 2.827, Bias: make([]float32, 384), NGroup: 1, NGroupUsed: 1}, // kimi k2
	{NExpert: 512, NUsed: 10, Norm: true}, // qwen3next
	{NExpert: 512, NUsed: 32, Gating: moe.GatingSigmoid, Bias: make([]float32, 512), NGroup: 64, NGroupUsed: 7},
	{NExpert: 1, NUsed: 1},
	{NExpert: 1, NUsed: 1, Gating: moe.GatingSigmoid, Bias: make([]float32, 1), Norm: true},
	{NExpert: 16, NUsed: 1, Gating: moe.GatingSigmoid}, // llama4
	{NExpert: 128, NUsed: 1, Gating: moe.GatingSigmoid},
}

// TestCUDARoutingModels takes every kind of logits through the routers in use, and through one of each gating that uses
// 1 and all of up to 32 experts.
func TestCUDARoutingModels(t *testing.T) {
	rng := rand.New(rand.NewPCG(23, 24))
	routers := slices.Clone(modelRouters)
	for n := 1; n <= 33; n += 1 + n/6 {
		for g := moe.GatingSoftmax; g <= moe.GatingSigmoid; g++ {
			routers = append(routers, moe.Router{NExpert: n, NUsed: 1, Gating: g, Norm: n%2 == 0}, moe.Router{NExpert: n, NUsed: n, Gating: g, Norm: n%2 == 1})
		}
	}
	for i := range routers {
		r := &routers[i]
		if r.Scale == 0 {
			r.Scale = 1
		}
		if r.Bias != nil {
			r.Bias = randomBias(rng, r.NExpert)
		}
		if err := r.Validate(); err != nil {
			t.Fatal(err)
		}
		t.Run(fmt.Sprintf("experts=%d/used=%d/gating=%s", r.NExpert, r.NUsed, r.Gating), func(t *testing.T) {
			for kind := range logitKinds {
				c := randomCall(rng, r, 1+rng.IntN(5))
				fillLogits(rng, c.Logits, kind)
				checkRouting(t, c, c.T, fmt.Sprintf("kind %d", kind))
			}
		})
	}
}

// TestCUDARoutingBatches goes through every batch size of a small router, and the sizes of a prefill of larger ones,
// with shared and with scratch memory for the bits.
func TestCUDARoutingBatches(t *testing.T) {
	rng := rand.New(rand.NewPCG(25, 26))
	small := &moe.Router{NExpert: 12, NUsed: 3, Norm: true, Scale: 1}
	for rows := 1; rows <= 70; rows++ {
		t.Run(fmt.Sprintf("experts=12/rows=%d", rows), func(t *testing.T) { checkRouting(t, randomCall(rng, small, rows), rows, "") })
	}
	for _, s := range []struct{ n, k, rows int }{{128, 8, 512}, {512, 10, 512}, {512, 10, 800}, {2048, 4, 64}, {moe.MaxExperts, 8, 70}, {64, 32, 40}} {
		r := &moe.Router{NExpert: s.n, NUsed: s.k, Norm: true, Scale: 1}
		c := randomCall(rng, r, s.rows)
		for i := range c.Logits {
			c.Logits[i] = float32(rng.NormFloat64())
		}
		c.Resident = make([]uint8, s.n)
		c.Resident[s.n/2] = 1
		c.Drop = &moe.Drop{Frac: 0.7, Renorm: true}
		t.Run(fmt.Sprintf("experts=%d/rows=%d", s.n, s.rows), func(t *testing.T) { checkRouting(t, c, s.rows, "") })
	}
	// Every row selects the same experts: entries without end for some, none for the others.
	c := randomCall(rng, &moe.Router{NExpert: 40, NUsed: 4, Scale: 1}, 100)
	for i := range c.Logits {
		c.Logits[i] = float32(i % 40)
	}
	t.Run("same", func(t *testing.T) { checkRouting(t, c, 100, "") })
}

// TestCUDARoutingResidency takes one router through every residency of its experts, for a row and for a batch.
func TestCUDARoutingResidency(t *testing.T) {
	rng := rand.New(rand.NewPCG(27, 28))
	r := &moe.Router{NExpert: 6, NUsed: 3, Norm: true, Scale: 1.5}
	for mask := range 1 << r.NExpert {
		c := randomCall(rng, r, 1+mask%4)
		for i := range c.Logits {
			c.Logits[i] = float32(rng.NormFloat64())
		}
		c.Resident = make([]uint8, r.NExpert)
		for e := range c.Resident {
			c.Resident[e] = uint8(mask>>e&1) * uint8(1+rng.IntN(2))
		}
		c.Drop = &moe.Drop{Frac: 1, Renorm: mask%3 != 0}
		t.Run(fmt.Sprintf("%06b", mask), func(t *testing.T) { checkRouting(t, c, 4, "") })
	}
}

// TestCUDADropThreshold routes weights that lie on the threshold and one step beside it.
func TestCUDADropThreshold(t *testing.T) {
	d := &moe.Drop{Frac: 0.75}
	threshold := d.Threshold(4)
	below := math.Nextafter32(threshold, 0)
	ids := []int32{3, 1, 0, 2}
	weights := []float32{threshold, threshold, below, 0.9}
	tab := dev.NewTable(alloc(t, dev.TableBytes(4, 4, 1)), 4, 4, 1)
	store(t, tab.Sums, make([]byte, dev.SumsBytes))
	run(t, tab.DropTable(upload(t, ids), upload(t, weights), upload(t, make([]uint8, 4)), d, 0, 1))
	if got := download[uint8](t, tab.Dropped, 4); !bytes.Equal(got, []byte{0, 0, 1, 0}) {
		t.Errorf("dropped %v at threshold %v", got, threshold)
	}
}

// TestCUDADropSums adds weights of all sizes up, whose sums in double depend on the order for some and not for others.
func TestCUDADropSums(t *testing.T) {
	rng := rand.New(rand.NewPCG(39, 40))
	const n, k, rows = 16, 4, 80
	ids := make([]int32, 0, rows*k)
	for range rows {
		for _, e := range rng.Perm(n)[:k] {
			ids = append(ids, int32(e))
		}
	}
	for _, exponents := range [][2]int{{-3, 0}, {-18, 1}, {-19, 1}, {-20, 1}, {-30, 0}, {-149, -100}, {0, 15}, {-18, 8}, {-18, 15}, {-40, 15}, {1, 1}, {2, 2}, {-100, -100}} {
		weights := make([]float32, len(ids))
		for i := range weights {
			weights[i] = float32(math.Ldexp(1+rng.Float64(), exponents[0]+rng.IntN(exponents[1]-exponents[0]+1)))
		}
		tab := dev.NewTable(alloc(t, dev.TableBytes(n, k, rows)), n, k, rows)
		store(t, tab.Sums, make([]byte, dev.SumsBytes))
		resident := make([]uint8, n)
		for e := range n / 2 {
			resident[e] = 1
		}
		run(t, tab.DropTable(upload(t, ids), upload(t, weights), upload(t, resident), &moe.Drop{Frac: 1}, 0, rows))
		want := dev.Sums{Routed: rows * k}
		for i, d := range download[uint8](t, tab.Dropped, len(ids)) {
			want.Mass += float64(weights[i])
			want.Dropped += int64(d)
			if d != 0 {
				want.MassDropped += float64(weights[i])
			}
		}
		if got, _, _ := dev.DecodeSums(download[byte](t, tab.Sums, dev.SumsBytes)); got != want {
			t.Errorf("weights of 2^%d to 2^%d: %+v, want %+v", exponents[0], exponents[1], got, want)
		}
	}
}

// TestCUDARouteErrors has the cases of the CPU's test, each in a batch, and several bad rows at once: the first wins.
func TestCUDARouteErrors(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	negNaN := math.Float32frombits(0xffc00001)
	rows := map[string][]float32{
		"good": {1, 2, 3, -inf}, "nan": {0, 1, nan, nan}, "nan first": {nan, 1, 2, 3}, "nan with sign": {0, 1, 2, negNaN},
		"inf": {0, inf, 0, nan}, "-inf and nan": {-inf, -inf, -inf, negNaN}, "all -inf": {-inf, -inf, -inf, -inf},
	}
	call := func(g moe.Gating, names ...string) *moe.Call {
		c := &moe.Call{Layer: 3, T: len(names), Pos0: 100, Router: &moe.Router{NExpert: 4, NUsed: 2, Gating: g, Norm: true, Scale: 1},
			Sel: moe.NewSelection(2, len(names)), Table: moe.NewTable(4, 2, len(names))}
		for _, name := range names {
			c.Logits = append(c.Logits, rows[name]...)
		}
		return c
	}
	for g := moe.GatingSoftmax; g <= moe.GatingSigmoid; g++ {
		for name := range rows {
			var le *moe.LogitError
			if err := checkRouting(t, call(g, "good", name, "good"), 3, name); errors.As(err, &le) == (name == "good") {
				t.Errorf("%s: %v", name, err)
			}
		}
		many := []string{"good", "good"}
		for range 40 {
			many = append(many, "all -inf", "nan", "good", "inf")
		}
		if err := checkRouting(t, call(g, many...), len(many), "many"); err == nil {
			t.Error("no error")
		}
	}

	// A later layer's error, and an earlier one's that comes second, as launches of one step.
	c := call(moe.GatingSoftmax, "good", "inf")
	w := layRouting(t, c, 2)
	late := w.launches()
	c.Layer = 1
	early := w.launches()
	run(t, slices.Concat(late, early)...)
	e := dev.DecodeRouteError(download[uint64](t, w.tab.Err, 1)[0], 0)
	if e == nil || e.Layer != 1 || e.Position != 1 || e.Expert != 1 {
		t.Errorf("error %v, want layer 1, position 1, expert 1", e)
	}

	// A refused row's weights are NaN, its neighbour's what they were.
	weights := download[float32](t, w.tap.Weights(0), 4)
	if weights[0] != weights[0] || weights[2] == weights[2] || weights[3] == weights[3] {
		t.Errorf("weights %v, want numbers, then NaN", weights)
	}
}

// TestCUDARoutingRepeats routes one call 100 times: same input, same bytes. Sums add up as a run's do on the CPU.
func TestCUDARoutingRepeats(t *testing.T) {
	rng := rand.New(rand.NewPCG(29, 30))
	r := &moe.Router{NExpert: 64, NUsed: 6, Gating: moe.GatingSigmoid, Norm: true, Scale: 1, Bias: randomBias(rng, 64), NGroup: 4, NGroupUsed: 2}
	c := randomCall(rng, r, 20)
	fillLogits(rng, c.Logits, 0)
	c.Resident, c.Drop = make([]uint8, 64), &moe.Drop{Frac: 0.9, Renorm: true}
	g := layRouting(t, c, 20)
	arm := moe.NewHostArm(64, 6, 20)
	var first []byte
	var want dev.Sums
	for i := range 100 {
		run(t, g.launches()...)
		got := slices.Concat(download[byte](t, g.tap.Base, int(g.tap.Bytes())), download[byte](t, g.tab.Offsets, int(g.tab.Sums-g.tab.Offsets)))
		if i == 0 {
			first = got
		} else if !bytes.Equal(got, first) {
			t.Fatalf("run %d differs from the first", i)
		}
		err := arm.Route(c)
		if d := g.diff(t, err); err != nil || d != "" {
			t.Fatalf("run %d: %v %s", i, err, d)
		}
		want = dev.Sums{Routed: want.Routed + int64(c.Routed), Dropped: want.Dropped + int64(c.Dropped), Mass: want.Mass + c.Mass, MassDropped: want.MassDropped + c.MassDropped}
	}
	record := download[byte](t, g.tab.Sums, dev.SumsBytes)
	_, total, before := dev.DecodeSums(record)
	if total != want {
		t.Errorf("sums %+v after 100 calls, want %+v", total, want)
	}
	if dev.RestoreSums(record); before.Routed != total.Routed-int64(c.Routed) {
		t.Errorf("sums %+v before the last call, %+v with it", before, total)
	} else if _, got, _ := dev.DecodeSums(record); got != before {
		t.Errorf("sums %+v without the last call, want %+v", got, before)
	}
	// A record elsewhere goes on from this one's totals.
	next := g.tab
	next.Before, next.Sums = g.tab.Sums, upload(t, make([]byte, dev.SumsBytes))
	g.tab = next
	run(t, g.launches()...)
	call, sum, was := dev.DecodeSums(download[byte](t, next.Sums, dev.SumsBytes))
	if was != total || sum.Routed != total.Routed+call.Routed || sum.Mass != total.Mass+call.Mass {
		t.Errorf("the next record: call %+v, total %+v, before %+v, want %+v", call, sum, was, total)
	}
}

// TestCUDATapLayers routes three layers into one tap and brings them back with one copy.
func TestCUDATapLayers(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	r := &moe.Router{NExpert: 32, NUsed: 4, Norm: true, Scale: 1}
	tap := dev.Tap{Layers: 3, K: 4, MaxT: 5}
	tap.Base = alloc(t, tap.Bytes())
	errWord := upload(t, []uint64{0})
	calls := make([]*moe.Call, tap.Layers)
	launches := make([]dev.Launch, tap.Layers)
	for l := range calls {
		calls[l] = randomCall(rng, r, 3)
		launches[l] = dev.Route(r, tap.IDs(l), tap.Weights(l), errWord, upload(t, calls[l].Logits), 0, l, 3)
	}
	run(t, launches...)
	b := download[byte](t, tap.Base, int(tap.Bytes()))
	arm := moe.NewHostArm(32, 4, 3)
	for l, c := range calls {
		expert, weight := make([]int32, 12), make([]float32, 12)
		err := arm.Route(c)
		if err == nil {
			err = tap.Decode(b, l, 3, 32, expert, weight)
		}
		if err != nil || !slices.Equal(expert, c.Sel.Expert) || firstBit(weight, c.Sel.Weight) >= 0 {
			t.Errorf("layer %d: %v: %v %v, want %v %v", l, err, expert, weight, c.Sel.Expert, c.Sel.Weight)
		}
	}
}

// TestCUDACombine holds the sum to the plain one, over shapes that do not fill a block, with rows that lost slots, and
// with values that cancel.
func TestCUDACombine(t *testing.T) {
	rng := rand.New(rand.NewPCG(33, 34))
	for i, width := range []int{1, 31, 64, 255, 256, 257, 576, 2048} {
		for _, rows := range []int{1, 2, 7} {
			t.Run(fmt.Sprintf("width=%d/rows=%d", width, rows), func(t *testing.T) {
				r := randomRouter(rng, 80)
				r.NUsed = min(r.NExpert, 1+13*i)
				r.NGroup, r.NGroupUsed = 0, 0
				c := randomCall(rng, &r, rows)
				if moe.NewHostArm(r.NExpert, r.NUsed, rows).Route(c) != nil {
					return
				}
				tab := dev.NewTable(alloc(t, dev.TableBytes(r.NExpert, r.NUsed, rows)), r.NExpert, r.NUsed, rows)
				b := make([]byte, tab.EncodedBytes())
				tab.Encode(b, c.Table, rows)
				store(t, tab.Offsets, b)

				kept := len(c.Table.Token)
				x, y, shared, gate := make([]float32, rows*width), make([]float32, kept*width), make([]float32, rows*width), make([]float32, rows)
				for _, s := range [][]float32{x, y, shared, gate} {
					for i := range s {
						if s[i] = float32(rng.NormFloat64()); i%3 == 1 {
							s[i] = 1e8 * float32(rng.IntN(3)-1)
						}
					}
				}
				for _, mode := range []int{0, 1, 2} { // no shared expert, one, one with a gate
					want := slices.Clone(x)
					for e := range r.NExpert {
						for i := c.Table.Offsets[e]; i < c.Table.Offsets[e+1]; i++ {
							for j := range width {
								at := int(c.Table.Token[i])*width + j
								want[at] += float32(c.Table.Weight[i] * y[int(i)*width+j])
							}
						}
					}
					var sharedPtr, gatePtr dev.Ptr
					if mode > 0 {
						sharedPtr = upload(t, shared)
					}
					if mode > 1 {
						gatePtr = upload(t, gate)
					}
					for at := range want {
						switch mode {
						case 1:
							want[at] += shared[at]
						case 2:
							want[at] += float32(gate[at/width] * shared[at])
						}
					}
					xPtr := upload(t, x)
					run(t, tab.Combine(xPtr, upload(t, y), sharedPtr, gatePtr, rows, width))
					got := download[float32](t, xPtr, len(x))
					if i := firstBit(got, want); i >= 0 {
						t.Fatalf("mode %d: value %d: %v, want %v", mode, i, got[i], want[i])
					}
				}
			})
		}
	}
}

// pin returns mapped host memory that lasts until the test ends.
func pin(t testing.TB, bytes int64) *driver.Pinned {
	t.Helper()
	var p *driver.Pinned
	on(t, func() (err error) {
		p, err = device.Pin(bytes, t.Name())
		return err
	})
	t.Cleanup(func() { on(t, p.Free) })
	return p
}

// TestCUDAPost reads messages from mapped memory and holds them to the experts with entries.
func TestCUDAPost(t *testing.T) {
	rng := rand.New(rand.NewPCG(35, 36))
	for seq, n := range []int{1, 4, 31, 32, 33, 64, 100, 512} {
		for _, rows := range []int{1, 20} {
			t.Run(fmt.Sprintf("experts=%d/rows=%d", n, rows), func(t *testing.T) {
				r := &moe.Router{NExpert: n, NUsed: min(n, 8), Norm: true, Scale: 1}
				c := randomCall(rng, r, rows)
				g := layRouting(t, c, rows)
				message := pin(t, dev.PostBytes(n))
				seq := uint32(seq)<<28 + 5
				run(t, append(g.launches(), g.tab.Post(message.Ptr, seq))...)
				ids, err := dev.DecodePost(message.Bytes, n, c.Pos0, nil)
				want := moe.NewHostArm(n, r.NUsed, rows).Route(c)
				if want != nil {
					if err == nil || err.Error() != want.Error() {
						t.Errorf("error %v, want %v", err, want)
					}
					return
				}
				var need []int32
				for e := range n {
					if c.Table.Offsets[e+1] > c.Table.Offsets[e] {
						need = append(need, int32(e))
					}
				}
				if err != nil || !slices.Equal(ids, need) || dev.PostSeq(message.Bytes) != seq {
					t.Errorf("message %d names %v (error %v), want %d naming %v", dev.PostSeq(message.Bytes), ids, err, seq, need)
				}
			})
		}
	}
}

// TestCUDARecipeExp compares the exponential with its golden bits, and with the CPU's on random ones.
func TestCUDARecipeExp(t *testing.T) {
	golden, err := os.ReadFile(filepath.Join("..", "..", "kernels", "testdata", "exp.golden"))
	if err != nil {
		t.Fatal(err)
	}
	var args, want []uint32
	for s := bufio.NewScanner(bytes.NewReader(golden)); s.Scan(); {
		var x, y uint32
		if n, _ := fmt.Sscanf(s.Text(), "%x %x", &x, &y); n == 2 {
			args, want = append(args, x), append(want, y)
		}
	}
	if len(args) < 800 {
		t.Fatalf("%d golden lines", len(args))
	}
	rng := rand.New(rand.NewPCG(37, 38))
	for range 1 << 18 {
		x := rng.Uint32()
		if rng.IntN(2) == 0 { // where the result is a number
			x = math.Float32bits(200*rng.Float32() - 110)
		}
		args, want = append(args, x), append(want, math.Float32bits(kernels.Exp(math.Float32frombits(x))))
	}
	y := alloc(t, 4*int64(len(args)))
	run(t, dev.Exp(y, upload(t, args), len(args)))
	for i, got := range download[uint32](t, y, len(args)) {
		if got != want[i] {
			t.Fatalf("exp of %08x: %08x, want %08x", args[i], got, want[i])
		}
	}
}
