package profile

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
)

//go:embed report.html.tmpl
var reportTemplate string

// htmlRows bounds each table of the HTML report; the JSON has all rows.
const htmlRows = 60

// WriteHTML writes the report as one page that needs nothing else: no script, no network, style and bars inside.
func (r *Report) WriteHTML(w io.Writer) error {
	t, err := template.New("report").Funcs(template.FuncMap{
		"us":      func(f Float) string { return grouped(float64(f)) },
		"sum":     func(s Sum) string { return grouped(float64(s.Value)) },
		"signed":  signed,
		"percent": func(f Float) string { return fmt.Sprintf("%.1f %%", 100*float64(f)) },
		"opt":     optionalText,
	}).Parse(reportTemplate)
	if err != nil {
		return fmt.Errorf("profile: report template: %w", err)
	}
	return t.Execute(w, r.page())
}

type htmlPage struct {
	*Report
	Sections []htmlSection
	Changes  []htmlChange
}

type htmlSection struct {
	sectionOf
	Open   bool
	Tables []htmlTable
	Layers []htmlLayer
	More   int // layers not shown
}

type htmlTable struct {
	Label string
	Rows  []htmlGroup
	More  int
}

// htmlGroup is a row with its bar's width in percent of the largest.
type htmlGroup struct {
	Group
	Bar float64
}

// htmlLayer is a layer with its four bars: each one's begin and width in percent.
type htmlLayer struct {
	LayerCost
	Bars [4]htmlBar
}

type htmlBar struct {
	X, W  float64
	Class string
}

type htmlChange struct {
	*SectionChange
	Tables []htmlChangeTable
}

type htmlChangeTable struct {
	Label string
	Rows  []htmlChangeRow
}

// htmlChangeRow is a row with its bar, which goes right from the middle for slower and left for faster.
type htmlChangeRow struct {
	Change
	Bar htmlBar
}

func (r *Report) page() htmlPage {
	p := htmlPage{Report: r}
	open := true
	for _, s := range r.sections() {
		if s.Ops == 0 {
			continue
		}
		h := htmlSection{sectionOf: s, Open: open}
		open = false
		for _, t := range []struct {
			label string
			rows  []Group
		}{{"category", s.ByCategory}, {"block", s.ByBlock}, {"op code", s.ByOp}, {"layer", s.ByLayer}} {
			h.Tables = append(h.Tables, htmlGroups(t.label, t.rows))
		}
		h.Layers, h.More = htmlLayers(s.Split.PerLayer)
		p.Sections = append(p.Sections, h)
	}
	if r.Against != nil {
		for i := range r.Against.Sections {
			s := &r.Against.Sections[i]
			h := htmlChange{SectionChange: s}
			for _, t := range s.tables() {
				h.Tables = append(h.Tables, htmlChanges(t))
			}
			p.Changes = append(p.Changes, h)
		}
	}
	return p
}

func htmlGroups(label string, rows []Group) htmlTable {
	t := htmlTable{Label: label, More: max(0, len(rows)-htmlRows)}
	most := 0.0
	for _, g := range rows {
		most = max(most, g.kernel)
	}
	for _, g := range rows[:len(rows)-t.More] {
		t.Rows = append(t.Rows, htmlGroup{g, percentOf(g.kernel, most)})
	}
	return t
}

func htmlLayers(rows []LayerCost) ([]htmlLayer, int) {
	more := max(0, len(rows)-htmlRows)
	parts := func(c LayerCost) [4]float64 {
		return [4]float64{float64(c.ComputeUS.Value), float64(c.MovementUS.Value), float64(c.SplitUS.Value), float64(c.FinishUS.Value)}
	}
	most := 0.0
	for _, c := range rows {
		p := parts(c)
		most = max(most, p[0]+p[1]+p[2]+p[3])
	}
	var out []htmlLayer
	for _, c := range rows[:len(rows)-more] {
		l := htmlLayer{LayerCost: c}
		x := 0.0
		for i, v := range parts(c) {
			w := percentOf(v, most)
			l.Bars[i] = htmlBar{x, w, [4]string{"compute", "movement", "split", "finish"}[i]}
			x += w
		}
		out = append(out, l)
	}
	return out, more
}

func htmlChanges(t changeTable) htmlChangeTable {
	out := htmlChangeTable{Label: t.Label}
	most := 0.0
	for _, c := range t.Rows {
		most = max(most, math.Abs(c.delta))
	}
	for _, c := range t.Rows {
		w := percentOf(math.Abs(c.delta), most) / 2
		b := htmlBar{50, w, "slower"}
		if c.delta < 0 {
			b = htmlBar{50 - w, w, "faster"}
		}
		out.Rows = append(out.Rows, htmlChangeRow{c, b})
	}
	return out
}

// percentOf is v in percent of most, to 0.01, 0 to 100.
func percentOf(v, most float64) float64 {
	if most <= 0 || v <= 0 {
		return 0
	}
	return math.Round(1e4*v/most) / 100
}

// grouped writes a time with one decimal and a thin space between thousands.
func grouped(v float64) string {
	s := fmt.Sprintf("%.1f", math.Abs(v))
	for i := len(s) - 2 - 3; i > 0; i -= 3 {
		s = s[:i] + "\u2009" + s[i:]
	}
	if v < 0 {
		s = "\u2212" + s
	}
	return s
}

func optionalText(f *Float) string {
	if f == nil {
		return "none"
	}
	return grouped(float64(*f))
}
