package moe

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestDropValidate(t *testing.T) {
	tests := []struct {
		frac  float64
		nUsed int
		want  string // "" valid
	}{
		{0, 1, ""}, {math.Copysign(0, -1), 8, ""}, {1, 2, ""}, {5e-324, 2, ""},
		{math.NaN(), 8, "fraction NaN, want 0 to 1"},
		{math.Inf(1), 8, "fraction +Inf"},
		{math.Inf(-1), 8, "fraction -Inf"},
		{math.Nextafter(1, 2), 8, "fraction 1.0000000000000002"},
		{-5e-324, 8, "fraction -5e-324"},
		{0.5, 0, "0 experts used"},
		{0.5, 1, "can drop nothing"},
	}
	for _, tt := range tests {
		err := Drop{Frac: tt.frac}.Validate(tt.nUsed)
		if got := fmt.Sprint(err); (tt.want == "") != (err == nil) || err != nil && !strings.Contains(got, tt.want) {
			t.Errorf("frac %v, %d used: error %q, want %q", tt.frac, tt.nUsed, got, tt.want)
		}
	}
}

// TestThreshold proves the float32 twin around the threshold, where alone it could differ: both comparisons are monotone
// in w, so agreement on the neighbours of the bound (and on the ends) is agreement everywhere.
func TestThreshold(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	fracs := []float64{0, math.Copysign(0, -1), 5e-324, 1e-45, 1e-40, 1e-38, 0.1, 0.25, 0.3, 0.5, 0.7, 0.75, 1, math.Nextafter(1, 0), math.Nextafter(0.5, 1)}
	for range 500 {
		fracs = append(fracs, rng.Float64(), float64(rng.Float32()), math.Exp(-100*rng.Float64()))
	}
	ks := []int{1, 2, 3, 4, 5, 6, 7, 8, 10, 16, 22, 128, 1024, MaxExperts}
	for _, frac := range fracs {
		for _, k := range ks {
			d := Drop{Frac: frac}
			th := d.Threshold(k)
			ws := []float32{0, math.SmallestNonzeroFloat32, 1, MaxScale, th}
			for up, down, i := th, th, 0; i < 4; i++ {
				up, down = math.Nextafter32(up, 2), math.Nextafter32(down, -1)
				ws = append(ws, up, down)
			}
			for _, w := range ws {
				if want, got := float64(w) < frac*(1.0/float64(k)), w < th; got != want {
					t.Fatalf("frac %v k %d: weight %v: float32 twin says %v, float64 %v (bound %v)", frac, k, w, got, want, th)
				}
			}
		}
	}
}

func TestMarkRow(t *testing.T) {
	share := Drop{Frac: 1}.Share(4) // 0.25
	tests := []struct {
		weight []float64
		miss   []bool
		want   []bool
	}{
		{[]float64{0.5, 0.24, 0.25, 0.01}, []bool{true, true, true, true}, []bool{false, true, false, true}},
		{[]float64{0.5, 0.24, 0.25, 0.01}, []bool{true, false, true, false}, []bool{false, false, false, false}},
		// The top-weighted slot stays even below the share, and need not be slot 0; of equals it is the first.
		{[]float64{0.1, 0.2, 0.2, 0.1}, []bool{true, true, true, true}, []bool{true, false, true, true}},
		{[]float64{0, 0}, []bool{true, true}, []bool{false, true}},
		{nil, nil, nil},
	}
	for _, tt := range tests {
		fall := make([]bool, len(tt.weight))
		n := MarkRow(share, tt.weight, tt.miss, fall)
		count := 0
		for _, f := range fall {
			if f {
				count++
			}
		}
		if !slices.Equal(fall, tt.want) || n != count {
			t.Errorf("weights %v miss %v: fall %v (%d), want %v", tt.weight, tt.miss, fall, n, tt.want)
		}
	}
}

// TestDropBatch is the rule for calls of several rows, on a case small enough to check by eye. Weights are the softmax
// itself (k = n = 4, share 0.25 at fraction 1).
func TestDropBatch(t *testing.T) {
	logits := slices.Concat(
		logs(0.60, 0.20, 0.15, 0.05),
		logs(0.10, 0.30, 0.20, 0.40))
	resident := []uint8{1, 0, 0, 2}
	for _, a := range arms(4, 4, 2) {
		for rows, want := range map[int][]bool{
			// Slots of row 0: experts 0 1 2 3. Alone it drops the misses 1 and 2.
			1: {false, true, true, false},
			// Row 1 (slots: experts 3 1 2 0) needs expert 1 for 0.30, so row 0 keeps it too. Both can do without 2.
			2: {false, false, true, false, false, false, true, false},
		} {
			c := Call{T: rows, Router: &Router{NExpert: 4, NUsed: 4, Scale: 1}, Logits: logits[:rows*4], Resident: resident,
				Drop: &Drop{Frac: 1}, Sel: NewSelection(4, rows), Table: NewTable(4, 4, rows)}
			if err := a.Route(&c); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(c.Sel.Dropped, want) {
				t.Errorf("%s, %d rows: dropped %v, want %v", a.Name(), rows, c.Sel.Dropped, want)
			}
		}
		// An exempt row drops nothing, and keeps its experts in the other row too; that one falls elsewhere as before.
		c := Call{T: 2, Router: &Router{NExpert: 4, NUsed: 2, Scale: 1}, Logits: slices.Concat(logs(0.05, 0.80, 0.10, 0.05), logs(0.04, 0.80, 0.01, 0.15)),
			Resident: make([]uint8, 4), Exempt: []bool{true, false}, Drop: &Drop{Frac: 1, Renorm: true}, Sel: NewSelection(2, 2), Table: NewTable(4, 2, 2)}
		for _, tt := range []struct{ exempt, want []bool }{
			{nil, []bool{false, true, false, true}}, // slots: experts 1 2 and 1 3
			{[]bool{true, false}, []bool{false, false, false, true}},
			{[]bool{false, true}, []bool{false, true, false, false}},
		} {
			c.Exempt = tt.exempt
			if err := a.Route(&c); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(c.Sel.Dropped, tt.want) {
				t.Errorf("%s, exempt %v: dropped %v, want %v", a.Name(), tt.exempt, c.Sel.Dropped, tt.want)
			}
		}
		// Both rows chose expert 2; the exempt one keeps it for both.
		copy(c.Logits[4:], logs(0.04, 0.80, 0.15, 0.01))
		c.Exempt = []bool{true, false}
		if err := a.Route(&c); err != nil {
			t.Fatal(err)
		}
		if c.Dropped != 0 {
			t.Errorf("%s: an expert that an exempt row chose fell: dropped %v", a.Name(), c.Sel.Dropped)
		}
	}
}

// dropReference is the policy as the replay script of the recordings states it (miss, weight below frac times the uniform
// share, not the cell's best), in float64 over rows of (expert, weight), with the batch rule, exempt rows and rescaling
// added. It knows nothing of the package's code.
func dropReference(frac float64, renorm bool, k int, expert []int32, weight []float32, resident []uint8, exempt []bool) (dropped []bool, applied []float64) {
	uniform := 1.0 / float64(k)
	thr := uniform * frac
	dropped = make([]bool, len(expert))
	keptBy := map[int32]bool{}
	for row := 0; row < len(expert); row += k {
		best := row
		for i := row; i < row+k; i++ {
			if float64(weight[i]) > float64(weight[best]) {
				best = i
			}
		}
		for i := row; i < row+k; i++ {
			const miss = 0
			if resident[expert[i]] == miss && i != best && float64(weight[i]) < thr && !(exempt != nil && exempt[row/k]) {
				dropped[i] = true
			} else {
				keptBy[expert[i]] = true
			}
		}
	}
	for i, e := range expert {
		dropped[i] = dropped[i] && !keptBy[e]
	}
	for row := 0; row < len(expert); row += k {
		var mass, kept float64
		for i := row; i < row+k; i++ {
			mass += float64(weight[i])
			if !dropped[i] {
				kept += float64(weight[i])
			}
		}
		for i := row; i < row+k; i++ {
			w := float64(weight[i])
			if renorm && kept > 0 {
				w *= mass / kept
			}
			if dropped[i] {
				w = 0
			}
			applied = append(applied, w)
		}
	}
	return dropped, applied
}

func TestDropAgainstReference(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	total := 0
	for range 1000 {
		r := randomRouter(rng, 40)
		rows := 1 + rng.IntN(4)
		n, k := r.NExpert, r.NUsed
		c := Call{T: rows, Router: &r, Logits: make([]float32, rows*n), Resident: make([]uint8, n),
			Drop: &Drop{Frac: float64(rng.IntN(5)) / 4, Renorm: rng.IntN(2) == 0}, Sel: NewSelection(k, rows), Table: NewTable(n, k, rows)}
		for i := range c.Logits {
			c.Logits[i] = float32(rng.IntN(9)-4) / 2 // coarse: many ties, many weights at the share
		}
		for i := range c.Resident {
			c.Resident[i] = uint8(max(0, rng.IntN(5)-2))
		}
		if rng.IntN(2) == 0 {
			c.Exempt = randomExempt(rng, rows)
		}
		for _, a := range arms(n, k, rows) {
			if err := a.Route(&c); err != nil {
				t.Fatal(err)
			}
			dropped, applied := dropReference(c.Drop.Frac, c.Drop.Renorm, k, c.Sel.Expert, c.Sel.Weight, c.Resident, c.Exempt)
			if !slices.Equal(dropped, c.Sel.Dropped) {
				t.Fatalf("%s: %+v %+v\nexperts %v\nweights %v\nresident %v\nexempt %v\ndropped %v\nwant    %v", a.Name(), r, *c.Drop,
					c.Sel.Expert, c.Sel.Weight, c.Resident, c.Exempt, c.Sel.Dropped, dropped)
			}
			checkTable(t, &c, applied)
			total += c.Dropped
			if c.Drop.Frac == 0 && c.Dropped != 0 {
				t.Fatalf("%s: fraction 0 dropped %d", a.Name(), c.Dropped)
			}
		}
	}
	if total < 1000 {
		t.Errorf("only %d slots dropped: the test hardly exercises the policy", total)
	}
}
