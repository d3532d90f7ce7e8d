package engine_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"sluice/engine"
	"sluice/engine/model"
	"sluice/moe/store"
)

const mib = 1 << 20

// TestBudget: what an automatic budget comes to, and what is refused, on the built-in model: 80 experts of 9 MiB together,
// one token's 20 take 3 MiB.
func TestBudget(t *testing.T) {
	m := openFile(t, demoFile(t))
	all, need := m.ExpertBytes(), store.WorkingSet(m.Layout, m.NExpertUsed)
	const floor, big = 160 * mib, 1 << 40
	for _, c := range []struct {
		name   string
		cfg    engine.SourceConfig
		budget int64  // wanted
		text   string // of the plan and its notes, or of the error
		bad    bool
	}{
		{"everything fits", engine.SourceConfig{BudgetBytes: -1, Available: big}, 0, "in the file's mapping", false},
		{"unknown memory", engine.SourceConfig{BudgetBytes: -1}, 0, "available memory unknown", false},
		{"just fits", engine.SourceConfig{BudgetBytes: -1, Available: all + floor}, 0, "in the file's mapping", false},
		{"a byte short", engine.SourceConfig{BudgetBytes: -1, Available: all + floor - 1}, all - 1, "less 0 for dense weights and context and 160 left free", false},
		{"after the rest", engine.SourceConfig{BudgetBytes: -1, Available: 5*mib + floor, Reserved: mib}, 4 * mib, "room for 32 of 80 experts, one token's are 20 (3 MiB), even routing would hit 40 %", false},
		{"ceiling", engine.SourceConfig{BudgetBytes: -1, Available: big, CeilBytes: 4 * mib}, 4 * mib, "cut to the ceiling", false},
		{"ceiling above", engine.SourceConfig{BudgetBytes: -1, Available: 5*mib + floor, CeilBytes: 8 * mib}, 5 * mib, "", false},
		{"ceiling above all", engine.SourceConfig{BudgetBytes: -1, Available: big, CeilBytes: big}, 0, "in the file's mapping", false},
		{"ceiling, unknown memory", engine.SourceConfig{BudgetBytes: -1, CeilBytes: 4 * mib}, 4 * mib, "the ceiling", false},
		{"ceiling with mapped experts", engine.SourceConfig{BudgetBytes: -1, Available: big, CeilBytes: 4 * mib, IO: "mmap"}, 0, "there is no cache then", true},
		{"below one token", engine.SourceConfig{BudgetBytes: -1, Available: floor + mib, Reserved: mib / 2}, 0, "expect hardly a hit", true},
		{"nothing left", engine.SourceConfig{BudgetBytes: -1, Available: floor, Reserved: mib, Force: true}, 0, "expert cache of 0 MiB", true},
		{"below one token, forced", engine.SourceConfig{BudgetBytes: -1, Available: floor + mib, Force: true}, mib, "one token's are 20 (3 MiB), more than fit, so even routing would hit 0 %", false},
		{"ceiling below one token", engine.SourceConfig{BudgetBytes: -1, Available: big, CeilBytes: mib}, 0, "one token's experts need 3 MiB", true},
		{"named", engine.SourceConfig{BudgetBytes: 4 * mib, Available: 5 * mib, Reserved: mib}, 4 * mib, "", false},
		{"named, below one token", engine.SourceConfig{BudgetBytes: mib}, 0, "one token's experts need 3 MiB", true},
		{"named, more than there is", engine.SourceConfig{BudgetBytes: 5 * mib, Available: 5 * mib, Reserved: mib}, 0,
			"expert cache of 5 MiB: 5 MiB of memory are available, 1 MiB of them needed for dense weights and context, which leaves 4 MiB", true},
		{"named, more than there is, forced", engine.SourceConfig{BudgetBytes: 5 * mib, Available: 5 * mib, Reserved: mib, Force: true}, 5 * mib, "", false},
		// Only as much as there are experts is ever taken.
		{"named, more than all experts", engine.SourceConfig{BudgetBytes: math.MaxInt64, Available: 16 * mib, Reserved: mib}, math.MaxInt64, "room for 80 of 80", false},
	} {
		src, plan, err := engine.OpenSource(m, c.cfg, m.NExpertUsed)
		text := fmt.Sprint(plan, plan.Notes)
		if err == nil {
			if st := src.Stats(); st.BudgetBytes != c.budget {
				t.Errorf("%s: the source has %d bytes, want %d", c.name, st.BudgetBytes, c.budget)
			}
			src.Close()
		} else {
			text = err.Error()
			var setting *model.SettingError
			if !errors.As(err, &setting) {
				t.Errorf("%s: %v is no SettingError", c.name, err)
			}
		}
		if (err != nil) != c.bad || !strings.Contains(text, c.text) || err == nil && plan.BudgetBytes != c.budget {
			t.Errorf("%s: budget %d, %s; want %d, %q, error %v", c.name, plan.BudgetBytes, text, c.budget, c.text, c.bad)
		}
		if err == nil && plan.BudgetBytes > 0 && plan.WorkingSet != need {
			t.Errorf("%s: working set %d, want %d", c.name, plan.WorkingSet, need)
		}
	}
}

// TestFloor: an automatic budget leaves a sixteenth, at least 160 MiB and at most 4 GiB.
func TestFloor(t *testing.T) {
	m := openFile(t, demoFile(t))
	for _, c := range []struct{ available, floor int64 }{{300 * mib, 160 * mib}, {32 << 30, 2 << 30}, {1 << 40, 4 << 30}} {
		reserved := c.available - c.floor - 5*mib
		src, plan, err := engine.OpenSource(m, engine.SourceConfig{BudgetBytes: -1, Available: c.available, Reserved: reserved}, m.NExpertUsed)
		if err == nil {
			src.Close()
		}
		if err != nil || plan.BudgetBytes != 5*mib {
			t.Errorf("%d MiB: budget %d, %v: want 5 MiB", c.available/mib, plan.BudgetBytes, err)
		}
	}
}
