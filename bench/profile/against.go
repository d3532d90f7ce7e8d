package profile

import (
	"bufio"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Comparison says what changed from an old profile to a new one.
type Comparison struct {
	Old      string          `json:"old"` // the old file
	Notes    []string        `json:"notes"`
	Sections []SectionChange `json:"sections"`
}

// SectionChange compares one section that both profiles have. Each list begins with what got slower by most and
// ends with what got faster by most; a key that only one profile has is in it.
type SectionChange struct {
	Section    string   `json:"section"`
	Total      Change   `json:"total"`
	ByOp       []Change `json:"by_op"`
	ByCategory []Change `json:"by_category"`
	ByBlock    []Change `json:"by_block"`
	ByLayer    []Change `json:"by_layer"`
}

// Change is one key's times, in microseconds.
type Change struct {
	Key         string `json:"key"`
	OldOps      int    `json:"old_ops"`
	NewOps      int    `json:"new_ops"`
	OldKernelUS Float  `json:"old_kernel_us"`
	NewKernelUS Float  `json:"new_kernel_us"`
	DeltaUS     Float  `json:"delta_us"` // new - old kernel time, above 0: slower
	Ratio       *Float `json:"ratio"`    // new / old, to 0.0001; null where the old time is 0
	DeltaGapUS  Float  `json:"delta_gap_us"`

	delta float64 // unrounded
}

// Compare sets a report against an older one of the same model. Sections without ops on either side are left out,
// and a note says so.
func Compare(old, new *Report) *Comparison {
	c := &Comparison{Old: old.CSV, Notes: []string{}, Sections: []SectionChange{}}
	if old.Arch != new.Arch && old.Arch != "" && new.Arch != "" {
		c.notef("the architectures differ: %s, now %s", old.Arch, new.Arch)
	}
	for _, s := range new.sections() {
		var o *Summary
		for _, t := range old.sections() {
			if t.Name == s.Name {
				o = t.Summary
			}
		}
		switch {
		case o == nil || o.Ops == 0 && s.Ops == 0:
		case o.Ops == 0:
			c.notef("section %s: the old profile has no op", s.Name)
		case s.Ops == 0:
			c.notef("section %s: the new profile has no op", s.Name)
		default:
			if o.Ops != s.Ops {
				c.notef("section %s: %d ops, now %d", s.Name, o.Ops, s.Ops)
			}
			c.Sections = append(c.Sections, SectionChange{s.Name, totalChange(o, s.Summary), changes(o.ByOp, s.ByOp),
				changes(o.ByCategory, s.ByCategory), changes(o.ByBlock, s.ByBlock), changes(o.ByLayer, s.ByLayer)})
		}
	}
	if len(c.Sections) == 0 {
		c.notef("the profiles have no section in common")
	}
	return c
}

func (c *Comparison) notef(format string, args ...any) {
	c.Notes = append(c.Notes, fmt.Sprintf(format, args...))
}

func totalChange(old, new *Summary) Change {
	sum := func(s *Summary) Group {
		t := Group{Ops: s.Ops}
		for _, g := range s.ByOp {
			t.kernel += g.kernel
			t.gap += g.gap
		}
		return t
	}
	return change("total", sum(old), sum(new))
}

func change(key string, old, new Group) Change {
	c := Change{Key: key, OldOps: old.Ops, NewOps: new.Ops, OldKernelUS: round(old.kernel, 1), NewKernelUS: round(new.kernel, 1),
		delta: new.kernel - old.kernel, DeltaGapUS: round(new.gap-old.gap, 1)}
	c.DeltaUS = round(c.delta, 1)
	if r := new.kernel / old.kernel; old.kernel != 0 && !math.IsInf(r, 0) {
		c.Ratio = ptr(round(r, 4))
	}
	return c
}

func changes(old, new []Group) []Change {
	out := []Change{}
	before := make(map[string]Group, len(old))
	for _, g := range old {
		before[g.Key] = g
	}
	for _, g := range new {
		out = append(out, change(g.Key, before[g.Key], g))
		delete(before, g.Key)
	}
	for _, g := range old {
		if _, gone := before[g.Key]; gone {
			out = append(out, change(g.Key, g, Group{}))
		}
	}
	slices.SortStableFunc(out, func(a, b Change) int {
		return cmp.Or(falling(a.delta, b.delta), strings.Compare(a.Key, b.Key))
	})
	return out
}

// tables are the lists with their names, for printing.
func (s *SectionChange) tables() []changeTable {
	return []changeTable{{"category", ends(s.ByCategory)}, {"block", ends(s.ByBlock)}, {"op code", ends(s.ByOp)}, {"layer", ends(s.ByLayer)}}
}

type changeTable struct {
	Label string
	Rows  []Change
}

// ends keeps the 15 slowest and the 5 fastest changes of a list.
func ends(c []Change) []Change {
	if len(c) <= 20 {
		return c
	}
	return append(slices.Clone(c[:15]), c[len(c)-5:]...)
}

// RatioText is the ratio for people: "new" and "gone" for a key that only one profile has.
func (c Change) RatioText() string {
	switch {
	case c.OldOps == 0:
		return "new"
	case c.NewOps == 0:
		return "gone"
	case c.Ratio == nil:
		return "-"
	}
	return fmt.Sprintf("%.3f", float64(*c.Ratio))
}

// signed writes a change; what rounds to nothing has no sign.
func signed(f Float) string {
	if f == 0 {
		return "0.0"
	}
	return fmt.Sprintf("%+.1f", float64(f))
}

func (c *Comparison) writeMarkdown(b *bufio.Writer) {
	fmt.Fprintf(b, "\n## Against %s\n", c.Old)
	for _, n := range c.Notes {
		fmt.Fprintf(b, "\n%s\n", n)
	}
	for i := range c.Sections {
		s := &c.Sections[i]
		t := s.Total
		fmt.Fprintf(b, "\n%s: kernel %s us, before %s us (%s us, ratio %s); op-to-op %s us\n", s.Section, fixed1(t.NewKernelUS),
			fixed1(t.OldKernelUS), signed(t.DeltaUS), t.RatioText(), signed(t.DeltaGapUS))
		for _, table := range s.tables() {
			fmt.Fprintf(b, "\n| %s (%s), slower first | ops before | ops | kernel us before | kernel us | change us | ratio | op-to-op change us |\n|---|---:|---:|---:|---:|---:|---:|---:|\n", table.Label, s.Section)
			for _, r := range table.Rows {
				fmt.Fprintf(b, "| %s | %d | %d | %s | %s | %s | %s | %s |\n", r.Key, r.OldOps, r.NewOps, fixed1(r.OldKernelUS),
					fixed1(r.NewKernelUS), signed(r.DeltaUS), r.RatioText(), signed(r.DeltaGapUS))
			}
		}
	}
}
