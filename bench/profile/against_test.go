package profile

import (
	"slices"
	"strings"
	"testing"
)

func report(t *testing.T, name, csv string, o ReportOptions) *Report {
	t.Helper()
	p, err := Read(strings.NewReader(csv), name, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p.Report(o)
}

func TestCompare(t *testing.T) {
	old := report(t, "old.csv", opsFile("trace,signpost", "m:enc,signpost", "c:l0,signpost", opRow("Matmul", 1000), opRow("Halo", 4000),
		"c:l1,signpost", opRow("Matmul", 500), opRow("Gone", 40), "trace_end,signpost"), ReportOptions{})
	now := report(t, "new.csv", opsFile("trace,signpost", "m:enc,signpost", "c:l0,signpost", opRow("Matmul", 3000), opRow("Halo", 3000),
		"c:l1,signpost", opRow("Matmul", 500), opRow("Fresh", 60), opRow("Zero", 0), "trace_end,signpost"), ReportOptions{})
	c := Compare(old, now)
	if c.Old != "old.csv" || len(c.Sections) != 1 || c.Sections[0].Section != SectionTrace {
		t.Fatalf("comparison of %s has sections %+v", c.Old, c.Sections)
	}
	if want := []string{"section trace: 4 ops, now 5"}; !slices.Equal(c.Notes, want) {
		t.Errorf("notes %q, want %q", c.Notes, want)
	}
	s := c.Sections[0]
	type line struct {
		key      string
		old, new int
		delta    Float
		ratio    string
	}
	lines := func(cs []Change) (out []line) {
		for _, c := range cs {
			out = append(out, line{c.Key, c.OldOps, c.NewOps, c.DeltaUS, c.RatioText()})
		}
		return out
	}
	for _, x := range []struct {
		name string
		got  []Change
		want []line
	}{
		{"total", []Change{s.Total}, []line{{"total", 4, 5, 1, "1.184"}}},
		{"op", s.ByOp, []line{{"Matmul", 2, 2, 2, "2.333"}, {"Fresh", 0, 1, 0.1, "new"}, {"Zero", 0, 1, 0, "new"}, {"Gone", 1, 0, 0, "gone"}, {"Halo", 1, 1, -1, "0.750"}}},
		{"category", s.ByCategory, []line{{"matmul (1x1 conv)", 2, 2, 2, "2.333"}, {"other", 1, 2, 0, "1.500"}, {"halo", 1, 1, -1, "0.750"}}},
		{"block", s.ByBlock, []line{{"enc", 4, 5, 1, "1.184"}}},
		{"layer", s.ByLayer, []line{{"l0", 2, 2, 1, "1.200"}, {"l1", 2, 3, 0, "1.037"}}},
	} {
		if got := lines(x.got); !slices.Equal(got, x.want) {
			t.Errorf("by %s: %+v, want %+v", x.name, got, x.want)
		}
	}
	now.Against = c
	md := output(t, now.WriteMarkdown)
	for _, want := range []string{"\n## Against old.csv\n", "trace: kernel 6.6 us, before 5.5 us (+1.0 us, ratio 1.184); op-to-op 0.0 us",
		"| Matmul | 2 | 2 | 1.5 | 3.5 | +2.0 | 2.333 | 0.0 |", "| Fresh | 0 | 1 | 0.0 | 0.1 | +0.1 | new |"} {
		if !strings.Contains(md, want) {
			t.Errorf("Markdown lacks %q:\n%s", want, md[strings.Index(md, "## Against"):])
		}
	}
	if j := output(t, now.WriteJSON); !strings.Contains(j, `"against": {`) || !strings.Contains(j, `"ratio": null`) {
		t.Error("JSON has no comparison, or no null for a ratio to nothing")
	}
}

func TestCompareNothingInCommon(t *testing.T) {
	a := report(t, "a.csv", opsFile("trace,signpost", opRow("A", 1), "trace_end,signpost"), ReportOptions{Whole: true})
	b := report(t, "b.csv", opsFile("eager,signpost", strings.Replace(opRow("A", 1), "blackhole", "wormhole_b0", 1), "eager_end,signpost"), ReportOptions{})
	c := Compare(b, a)
	want := []string{"the architectures differ: wormhole_b0, now blackhole", "section trace: the old profile has no op",
		"section eager: the new profile has no op", "the profiles have no section in common"}
	if len(c.Sections) != 0 || !slices.Equal(c.Notes, want) {
		t.Errorf("sections %v, notes %q", c.Sections, c.Notes)
	}
}

// Swapping the files turns each change round, and a profile against itself has none.
func TestCompareIsAntisymmetric(t *testing.T) {
	a := report(t, "a.csv", string(referenceCSV(t)), ReportOptions{})
	b := report(t, "b.csv", strings.ReplaceAll(string(referenceCSV(t)), "Matmul,", "Halo,"), ReportOptions{})
	there, back := Compare(a, b), Compare(b, a)
	for i, s := range there.Sections {
		delta := map[string]Float{}
		for _, c := range s.ByOp {
			delta[c.Key] = c.DeltaUS
		}
		for _, c := range back.Sections[i].ByOp {
			if delta[c.Key] != -c.DeltaUS {
				t.Errorf("%s: %v there, %v back", c.Key, delta[c.Key], c.DeltaUS)
			}
		}
	}
	for _, s := range Compare(a, a).Sections {
		for _, c := range s.ByLayer {
			if c.DeltaUS != 0 || c.NewOps != c.OldOps {
				t.Errorf("a profile against itself: %+v", c)
			}
		}
	}
}
