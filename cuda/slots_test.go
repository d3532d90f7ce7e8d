//go:build cuda

package cuda

import (
	"errors"
	"testing"

	"sluice/engine/model"
)

// TestCUDASlotPlan: budgets at and around their boundaries: what all experts take, what a token needs, and nothing.
func TestCUDASlotPlan(t *testing.T) {
	shapes := []expertShape{{bytes: 1000}, {bytes: 3000}, {bytes: 1000}, {bytes: 1000}}
	const nExpert, k = 10, 2
	classes, of := slotClasses(shapes)
	if len(classes) != 2 || classes[0] != (slotClass{1000, 3, 0}) || classes[1] != (slotClass{3000, 1, 0}) || of[1] != 1 || of[3] != 0 {
		t.Fatalf("classes %+v of %v", classes, of)
	}
	all, least := allBytes(classes, nExpert), leastBytes(classes, k)
	if all != 60000 || least != 8000 {
		t.Fatalf("all %d, least %d", all, least)
	}
	for _, c := range []struct{ asked, free, want int64 }{
		{1, 1 << 40, -1}, {least - 1, 1 << 40, -1}, {least, 0, least}, {least + 1, 0, least + 1}, {all - 1, 0, all - 1}, {all, 0, all}, {all + 1, 0, all}, {1 << 50, 0, all},
		{0, 0, -1}, {0, 2*least - 2, -1}, {0, 2 * least, least}, {0, 2*all - 2, all - 1}, {0, 2 * all, all}, {0, 1 << 45, all},
	} {
		got, err := planBudget(classes, nExpert, k, c.asked, c.free)
		var setting *model.SettingError
		if c.want < 0 && !errors.As(err, &setting) || c.want >= 0 && (err != nil || got != c.want) {
			t.Errorf("asked for %d of %d free: %d, %v; want %d", c.asked, c.free, got, err, c.want)
		}
	}
	for budget := least; budget < all; budget += 37 {
		cs, _ := slotClasses(shapes)
		shareSlots(cs, nExpert, k, budget)
		used := int64(0)
		for _, c := range cs {
			if c.slots < k || c.slots > c.layers*nExpert {
				t.Fatalf("budget %d: %+v", budget, cs)
			}
			used += c.bytes * int64(c.slots)
		}
		if used > budget {
			t.Fatalf("budget %d: %d used: %+v", budget, used, cs)
		}
	}
	if least := reserve(10 << 20); least != 5<<20 {
		t.Errorf("of 10 MiB %d stay free", least)
	}
	if most := reserve(1 << 40); most != 1<<30 {
		t.Errorf("of a TiB %d stay free", most)
	}
}
