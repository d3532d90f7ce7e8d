package kernels

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestArgMax(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		x    []float32
		want int
	}{
		{nil, -1},
		{[]float32{3}, 0},
		{[]float32{1, 3, 2}, 1},
		{[]float32{2, 3, 3}, 1},
		{[]float32{-inf, -inf}, 0},
		{[]float32{0, float32(math.Copysign(0, -1))}, 0},
		{[]float32{float32(math.Copysign(0, -1)), 0}, 0}, // equal values
		{[]float32{1, inf, inf}, 1},
		{[]float32{nan, 1}, -1},
		{[]float32{1, nan}, -1},
		{[]float32{inf, nan}, -1},
	} {
		if got := ArgMax(c.x); got != c.want {
			t.Errorf("ArgMax(%v) = %d, want %d", c.x, got, c.want)
		}
	}
}

// topKBySort is the definition: a stable sort by value descending, NaN last.
func topKBySort(k int, x []float32) []int32 {
	ids := make([]int32, len(x))
	for i := range ids {
		ids[i] = int32(i)
	}
	slices.SortStableFunc(ids, func(a, b int32) int {
		va, vb := x[a], x[b]
		switch {
		case va != va && vb != vb:
			return 0
		case va != va:
			return 1
		case vb != vb || va > vb:
			return -1
		case va < vb:
			return 1
		}
		return 0
	})
	return ids[:k]
}

func TestTopK(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 1))
	values := []float32{0, float32(math.Copysign(0, -1)), 1, 1, -1, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN())}
	for range 2000 {
		x := make([]float32, 1+r.IntN(40))
		for i := range x {
			if r.IntN(2) == 0 {
				x[i] = values[r.IntN(len(values))]
			} else {
				x[i] = float32(r.IntN(6))
			}
		}
		got := make([]int32, r.IntN(len(x)+1))
		TopK(got, x)
		if want := topKBySort(len(got), x); !slices.Equal(got, want) {
			t.Fatalf("TopK of %d in %v = %v, want %v", len(got), x, got, want)
		}
	}
}
