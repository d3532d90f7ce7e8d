package moe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// checkTable holds a routed call's table and counters against its selection: exactly the kept slots, by expert, tokens
// ascending, weights as applied (T x K, compared within float32 rounding).
func checkTable(t *testing.T, c *Call, applied []float64) {
	t.Helper()
	s, tab := c.Sel, c.Table
	n, k := c.Router.NExpert, c.Router.NUsed
	if len(tab.Offsets) != n+1 || tab.Offsets[0] != 0 || int(tab.Offsets[n]) != len(tab.Token) || len(tab.Token) != len(tab.Weight) {
		t.Fatalf("table of %d offsets (%v), %d tokens, %d weights", len(tab.Offsets), tab.Offsets, len(tab.Token), len(tab.Weight))
	}
	found := make([]bool, len(s.Expert))
	for e := range n {
		token, weight := tab.Rows(e)
		for i, row := range token {
			if i > 0 && token[i-1] >= row {
				t.Fatalf("expert %d: tokens %v do not ascend", e, token)
			}
			slot := slices.Index(s.Expert[int(row)*k:int(row)*k+k], int32(e))
			if slot < 0 {
				t.Fatalf("expert %d: row %d did not select it", e, row)
			}
			slot += int(row) * k
			found[slot] = true
			if d := math.Abs(float64(weight[i]) - applied[slot]); d > 1e-6*math.Abs(applied[slot])*float64(k)+1e-40 {
				t.Fatalf("expert %d row %d: weight %v, want %v", e, row, weight[i], applied[slot])
			}
		}
	}
	dropped, mass, massDropped := 0, 0.0, 0.0
	for i := range s.Expert {
		if found[i] == s.Dropped[i] {
			t.Fatalf("slot %d: in table %v, dropped %v", i, found[i], s.Dropped[i])
		}
		mass += float64(s.Weight[i])
		if s.Dropped[i] {
			dropped++
			massDropped += float64(s.Weight[i])
		}
	}
	if c.Routed != c.T*k || c.Dropped != dropped || c.Mass != mass || c.MassDropped != massDropped {
		t.Fatalf("routed %d dropped %d mass %v lost %v, want %d %d %v %v", c.Routed, c.Dropped, c.Mass, c.MassDropped, c.T*k, dropped, mass, massDropped)
	}
}

func TestRouteProperties(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for range 600 {
		r := randomRouter(rng, 50)
		r.Bias = nil // so that the slots' own weights descend
		rows := rng.IntN(5)
		c := Call{T: rows, Router: &r, Logits: make([]float32, rows*r.NExpert), Sel: NewSelection(r.NUsed, rows), Table: NewTable(r.NExpert, r.NUsed, rows)}
		for i := range c.Logits {
			c.Logits[i] = float32(rng.NormFloat64())
		}
		for _, a := range arms(r.NExpert, r.NUsed, max(rows, 1)) {
			if err := a.Route(&c); err != nil {
				t.Fatal(err)
			}
			applied := make([]float64, 0, rows*r.NUsed)
			for row := range rows {
				expert, weight := c.Sel.Expert[row*r.NUsed:(row+1)*r.NUsed], c.Sel.Weight[row*r.NUsed:(row+1)*r.NUsed]
				sum := 0.0
				for j, w := range weight {
					applied = append(applied, float64(w))
					sum += float64(w)
					if w < 0 || j > 0 && (w > weight[j-1] || w == weight[j-1] && expert[j] < expert[j-1]) {
						t.Fatalf("%s: %+v: row %d: slots out of order: %v %v", a.Name(), r, row, expert, weight)
					}
				}
				if r.Norm && math.Abs(sum-float64(r.Scale)) > 1e-5 {
					t.Fatalf("%s: %+v: weights sum to %v, want %v", a.Name(), r, sum, r.Scale)
				}
				ids := slices.Clone(expert)
				slices.Sort(ids)
				if len(slices.Compact(ids)) != r.NUsed {
					t.Fatalf("%s: experts %v not distinct", a.Name(), expert)
				}
			}
			checkTable(t, &c, applied)
		}
	}
}

func TestRouteBadLogits(t *testing.T) {
	negNaN := math.Float32frombits(0xffc00001)
	tests := []struct {
		name   string
		row    []float32
		expert int
		want   string
	}{
		{"nan", []float32{0, 1, nan32(), nan32()}, 2, "moe: layer 3: token at position 101: router logit of expert 2 is NaN, want a number below +Inf"},
		{"nan first", []float32{nan32(), 1, 2, 3}, 0, "expert 0 is NaN"},
		{"nan with sign", []float32{0, 1, 2, negNaN}, 3, "expert 3 is NaN"},
		{"inf", []float32{0, inf32(1), 0, nan32()}, 1, "expert 1 is +Inf"},
		{"-inf and nan", []float32{inf32(-1), inf32(-1), inf32(-1), negNaN}, 3, "expert 3 is NaN"},
		{"all -inf", []float32{inf32(-1), inf32(-1), inf32(-1), inf32(-1)}, -1, "moe: layer 3: token at position 101: every router logit is -Inf"},
	}
	for _, tt := range tests {
		for g := GatingSoftmax; g <= GatingSqrtSoftplus; g++ {
			for _, a := range arms(4, 2, 3) {
				r := &Router{NExpert: 4, NUsed: 2, Gating: g, Norm: true, Scale: 1}
				c := Call{Layer: 3, T: 3, Pos0: 100, Router: r, Logits: slices.Concat([]float32{1, 2, 3, inf32(-1)}, tt.row, []float32{4, 3, 2, 1}), Table: NewTable(4, 2, 3)}
				err := a.Route(&c)
				var le *LogitError
				if !errors.As(err, &le) || le.Layer != 3 || le.Position != 101 || le.Expert != tt.expert || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%s/%s/%s: error %v, want %q", tt.name, g, a.Name(), err, tt.want)
				}
				// The arm is as good as before.
				copy(c.Logits[4:8], []float32{1, 2, 3, 4})
				if err := a.Route(&c); err != nil || c.Routed != 6 {
					t.Errorf("%s/%s/%s: after the error: %v, %d routed", tt.name, g, a.Name(), err, c.Routed)
				}
			}
		}
	}
}

func TestRouteCallChecks(t *testing.T) {
	tests := []struct {
		edit func(c *Call)
		want string
	}{
		{func(c *Call) { c.Router.NExpert = 9 }, "9 experts, arm has room for 8"},
		{func(c *Call) { c.Router.NUsed = 3 }, "3 of 8 experts used, arm has room for 2"},
		{func(c *Call) { c.T = 3 }, "3 rows, arm has room for 2"},
		{func(c *Call) { c.T = -1 }, "-1 rows"},
		{func(c *Call) { c.Logits = c.Logits[1:] }, "15 router logits, want 2 x 8"},
		{func(c *Call) { c.Resident = make([]uint8, 7) }, "residency of 7 experts, want 8"},
		{func(c *Call) { c.Exempt = make([]bool, 1) }, "exemption of 1 rows, want 2"},
		{func(c *Call) { c.Exempt = []bool{} }, "exemption of 0 rows, want 2"},
		{func(c *Call) { c.Table = NewTable(8, 2, 1) }, "table has no room for 4 slots"},
		{func(c *Call) { c.Table = NewTable(7, 2, 2) }, "table has no room for 4 slots of 8 experts"},
		{func(c *Call) { c.Sel = NewSelection(2, 1) }, "selection has no room for 4 slots"},
		{func(c *Call) { c.Drop = &Drop{Frac: math.NaN()} }, "layer 7: moe: drop: fraction NaN"},
	}
	for _, tt := range tests {
		for _, a := range arms(8, 2, 2) {
			c := Call{Layer: 7, T: 2, Router: &Router{NExpert: 8, NUsed: 2, Scale: 1}, Logits: make([]float32, 16), Table: NewTable(8, 2, 2)}
			tt.edit(&c)
			if err := a.Route(&c); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: error %v, want %q", a.Name(), err, tt.want)
			}
		}
	}
	for _, l := range [][3]int{{0, 1, 1}, {MaxExperts + 1, 1, 1}, {8, 0, 1}, {8, 9, 1}, {8, 2, 0}, {8, 2, math.MaxInt32}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("arm for %v: no panic", l)
				}
			}()
			newLimits(l[0], l[1], l[2])
		}()
	}
}

// TestRouteTapChangesNothing routes with and without a Selection, and through arms larger than the call.
func TestRouteTapChangesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for range 200 {
		c, _ := randomCall(rng)
		small := arms(c.Router.NExpert, c.Router.NUsed, max(c.T, 1))
		large := arms(512, 512, 9)
		for i := range small {
			want := run(small[i], c)
			c.Sel = nil
			got := run(large[i], c)
			got.sel, want.sel = nil, nil
			if d := want.diff(got); d != "" {
				t.Fatalf("%s: %s", small[i].Name(), d)
			}
			c.Sel = NewSelection(c.Router.NUsed, c.T)
		}
	}
}

// randomCall draws a call that hurts: ties, denormal and signed zero logits, huge spreads, -Inf, rarely NaN.
func randomCall(rng *rand.Rand) (*Call, string) {
	r := randomRouter(rng, 1+rng.IntN(80))
	rows := rng.IntN(9)
	n, k := r.NExpert, r.NUsed
	c := &Call{Layer: 2, T: rows, Pos0: 7, Router: &r, Logits: make([]float32, rows*n), Sel: NewSelection(k, rows), Table: NewTable(n, k, rows)}
	kind := rng.IntN(8)
	for i := range c.Logits {
		switch kind {
		case 0:
			c.Logits[i] = float32(rng.IntN(3))
		case 1:
			c.Logits[i] = math.Float32frombits(uint32(rng.IntN(2))<<31 | uint32(rng.IntN(4)))
		case 2:
			c.Logits[i] = float32(60 * rng.NormFloat64())
		case 3:
			c.Logits[i] = -80 - 30*rng.Float32() // sigmoids and their sums go denormal
		case 4:
			c.Logits[i] = math.Float32frombits(rng.Uint32()&^(1<<30)) * float32(rng.IntN(2)) // finite, any small exponent
		default:
			c.Logits[i] = float32(rng.NormFloat64())
		}
		if rng.IntN(40) == 0 {
			c.Logits[i] = inf32(-1)
		}
		if rng.IntN(4000) == 0 {
			c.Logits[i] = nan32()
		}
	}
	if rng.IntN(2) == 0 && r.Bias != nil {
		for i := range r.Bias {
			r.Bias[i] = float32(rng.IntN(3)-2) * 6 // ties through the bias, and biases that swallow the score
		}
	}
	if rng.IntN(4) != 0 {
		c.Resident = make([]uint8, n)
		for i := range c.Resident {
			c.Resident[i] = uint8(max(0, rng.IntN(6)-3))
		}
	}
	if rng.IntN(4) != 0 {
		c.Drop = &Drop{Frac: float64(rng.IntN(9)) / 8, Renorm: rng.IntN(3) != 0}
		if rng.IntN(2) == 0 {
			c.Drop.Frac = rng.Float64()
		}
	}
	if rng.IntN(2) == 0 {
		c.Exempt = randomExempt(rng, rows)
	}
	return c, fmt.Sprintf("%+v kind %d", r, kind)
}

// randomExempt exempts some rows, rarely none or all.
func randomExempt(rng *rand.Rand, rows int) []bool {
	exempt := make([]bool, rows)
	for i, p := 0, rng.IntN(5); i < rows; i++ {
		exempt[i] = rng.IntN(4) < p
	}
	return exempt
}

// result is what a Route left behind, with floats as bits.
type result struct {
	err     string
	offsets []int32
	token   []int32
	weight  []uint32
	sel     []string
	counts  string
}

func bitsOf(x []float32) []uint32 {
	b := make([]uint32, len(x))
	for i, v := range x {
		b[i] = math.Float32bits(v)
	}
	return b
}

func run(a Arm, c *Call) result {
	if err := a.Route(c); err != nil {
		return result{err: err.Error()}
	}
	r := result{
		offsets: slices.Clone(c.Table.Offsets), token: slices.Clone(c.Table.Token), weight: bitsOf(c.Table.Weight),
		counts: fmt.Sprintf("routed %d dropped %d mass %x lost %x", c.Routed, c.Dropped, math.Float64bits(c.Mass), math.Float64bits(c.MassDropped)),
	}
	if c.Sel != nil {
		r.sel = append(r.sel, fmt.Sprintf("%d x %d", c.Sel.T, c.Sel.K))
		for i, e := range c.Sel.Expert {
			r.sel = append(r.sel, fmt.Sprintf("%d %x %v", e, math.Float32bits(c.Sel.Weight[i]), c.Sel.Dropped[i]))
		}
	}
	return r
}

// diff names the first difference, or "".
func (r result) diff(o result) string {
	switch {
	case r.err != o.err:
		return fmt.Sprintf("errors %q and %q", r.err, o.err)
	case !slices.Equal(r.sel, o.sel):
		return fmt.Sprintf("selections\n%v\n%v", r.sel, o.sel)
	case !slices.Equal(r.offsets, o.offsets):
		return fmt.Sprintf("offsets\n%v\n%v", r.offsets, o.offsets)
	case !slices.Equal(r.token, o.token):
		return fmt.Sprintf("tokens\n%v\n%v", r.token, o.token)
	case !slices.Equal(r.weight, o.weight):
		return fmt.Sprintf("weights\n%x\n%x", r.weight, o.weight)
	case r.counts != o.counts:
		return fmt.Sprintf("counters %s and %s", r.counts, o.counts)
	}
	return ""
}

func diffArms(t *testing.T, c *Call, what string) result {
	t.Helper()
	a := arms(c.Router.NExpert, c.Router.NUsed, max(c.T, 1))
	host := run(a[0], c)
	if d := host.diff(run(a[1], c)); d != "" {
		t.Fatalf("arms differ: %s\n%s\nlogits %v\nresident %v\nexempt %v\ndrop %+v", d, what, c.Logits, c.Resident, c.Exempt, c.Drop)
	}
	return host
}

// TestExemptEnds: with no row exempt the call is as without exemption, and with all of them as without dropping.
func TestExemptEnds(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 18))
	drops := 0
	for range 1000 {
		c, what := randomCall(rng)
		for i, a := range arms(c.Router.NExpert, c.Router.NUsed, max(c.T, 1)) {
			drop := c.Drop
			c.Exempt = nil
			want := run(a, c)
			drops += c.Dropped
			c.Exempt = make([]bool, c.T)
			if d := want.diff(run(a, c)); d != "" {
				t.Fatalf("%s: none exempt: %s\n%s", a.Name(), d, what)
			}
			for i := range c.Exempt {
				c.Exempt[i] = true
			}
			got := run(a, c)
			c.Exempt, c.Drop = nil, nil
			if d := run(a, c).diff(got); d != "" {
				t.Fatalf("%s (%d): all exempt: %s\n%s", a.Name(), i, d, what)
			}
			c.Drop = drop
		}
	}
	if drops < 500 {
		t.Errorf("%d drops: the draw hardly exercises them", drops)
	}
}

func TestArmsAgree(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	drops, errs := 0, 0
	for range 3000 {
		c, what := randomCall(rng)
		if res := diffArms(t, c, what); res.err != "" {
			errs++
		}
		drops += c.Dropped
	}
	if drops < 1000 || errs < 5 {
		t.Errorf("%d drops and %d errors: the draw hardly exercises them", drops, errs)
	}
}

// FuzzArms holds the table arm to the host arm bit for bit. The seed draws shape, router, residency and policy; raw, when
// given, overwrites logits with any bit pattern.
func FuzzArms(f *testing.F) {
	f.Add(uint64(1), []byte(nil))
	f.Add(uint64(2), []byte{0, 0, 0x80, 0x7f})
	f.Add(uint64(3), []byte{0, 0, 0, 0x80, 1, 0, 0, 0, 0, 0, 0x80, 0xff})
	f.Fuzz(func(t *testing.T, seed uint64, raw []byte) {
		c, what := randomCall(rand.New(rand.NewPCG(seed, 0)))
		if err := c.Router.Validate(); err != nil {
			t.Fatal(err)
		}
		for i := 0; i+4 <= len(raw) && i/4 < len(c.Logits); i += 4 {
			c.Logits[i/4] = math.Float32frombits(binary.LittleEndian.Uint32(raw[i:]))
		}
		diffArms(t, c, what)
	})
}

// benchCall is a drop-enabled call with half of the experts resident.
func benchCall(nExpert, nUsed, rows int) *Call {
	rng := rand.New(rand.NewPCG(15, 16))
	c := &Call{T: rows, Router: &Router{NExpert: nExpert, NUsed: nUsed, Norm: true, Scale: 1}, Logits: make([]float32, rows*nExpert),
		Resident: make([]uint8, nExpert), Drop: &Drop{Frac: 0.75, Renorm: true}, Table: NewTable(nExpert, nUsed, rows)}
	for i := range c.Logits {
		c.Logits[i] = float32(rng.NormFloat64())
	}
	for i := range c.Resident {
		c.Resident[i] = uint8(i & 1)
	}
	return c
}

func TestRouteAllocates(t *testing.T) {
	for _, sel := range []*Selection{nil, NewSelection(4, 3)} {
		for _, a := range arms(16, 4, 3) {
			c := benchCall(16, 4, 3)
			c.Sel, c.Exempt = sel, []bool{false, true, false}
			c.Router.Gating, c.Router.Bias, c.Router.NGroup, c.Router.NGroupUsed = GatingSigmoid, make([]float32, 16), 4, 2
			if n := testing.AllocsPerRun(100, func() {
				if err := a.Route(c); err != nil {
					t.Error(err)
				}
			}); n != 0 {
				t.Errorf("%s, tap %v: %v allocations a call, want 0", a.Name(), sel != nil, n)
			}
		}
	}
}

func BenchmarkRoute(b *testing.B) {
	for _, s := range []struct{ experts, k, tokens int }{{128, 8, 1}, {128, 8, 64}, {64, 8, 1}, {384, 8, 1}} {
		for _, a := range arms(s.experts, s.k, s.tokens) {
			b.Run(fmt.Sprintf("arm=%s/experts=%d/k=%d/tokens=%d", a.Name(), s.experts, s.k, s.tokens), func(b *testing.B) {
				c := benchCall(s.experts, s.k, s.tokens)
				b.ReportAllocs()
				for b.Loop() {
					if err := a.Route(c); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
