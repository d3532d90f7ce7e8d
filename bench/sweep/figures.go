package sweep

import (
	"fmt"
	"image/color"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"sluice/bench/figure"
)

var (
	grey   = color.RGBA{0x88, 0x88, 0x88, 0xff}
	blue   = color.RGBA{0x3b, 0x6e, 0xa5, 0xff}
	red    = color.RGBA{0xc0, 0x50, 0x4d, 0xff}
	green  = color.RGBA{0x9b, 0xbb, 0x59, 0xff}
	violet = color.RGBA{0x80, 0x64, 0xa2, 0xff}
)

// series is one bar per case.
type series struct {
	name   string // in the legend
	colors []color.Color
	values []float64
}

// chart is one figure.
type chart struct {
	file, title, axis string
	width             float64 // inches
	label             func(v float64) string
	series            []series
}

// SaveFigures writes the four figures of the document into dir, in each of the formats (".png", ".svg"), and returns the
// names: latency, traffic, memory per PE, and total work.
func (d *Document) SaveFigures(dir string, formats ...string) ([]string, error) {
	rows := slices.Clone(d.Rows)
	order := map[string]int{}
	for i, k := range Cases() {
		order[k.Panel(d.Config.Mode)] = i
	}
	slices.SortStableFunc(rows, func(a, b Row) int { return order[a.Panel] - order[b.Panel] })
	var labels []string
	for _, r := range rows {
		labels = append(labels, Cases()[order[r.Panel]].Label)
	}
	var paths []string
	for _, c := range charts(d.Config.Mode, rows) {
		for _, ext := range formats {
			p, err := c.plot(labels)
			if err != nil {
				return paths, fmt.Errorf("sweep: figure %s: %w", c.file, err)
			}
			path := filepath.Join(dir, c.file+ext)
			if err := figure.Save(path, p, c.width, 4.5); err != nil {
				return paths, err
			}
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// charts lists the figures with their numbers.
func charts(mode string, rows []Row) []chart {
	pick := func(f func(Row) float64) []float64 {
		var v []float64
		for _, r := range rows {
			v = append(v, f(r))
		}
		return v
	}
	// The last case, which the others are held against, is blue; what a figure warns of is red.
	marked := func(warn string) []color.Color {
		var c []color.Color
		for _, r := range rows {
			switch r.Panel {
			case panelPrefix(mode) + "cube_sp_pe_sp":
				c = append(c, blue)
			case panelPrefix(mode) + warn:
				c = append(c, red)
			default:
				c = append(c, grey)
			}
		}
		return c
	}
	plain := func(c color.Color) []color.Color { return slices.Repeat([]color.Color{c}, len(rows)) }
	prefix, title := "gqa_"+mode+"_long_ctx_4cases_", "Long-context "+mode+", "
	r := rows[0]
	shape := fmt.Sprintf("\none key/value head group, S_kv %d, T_q %d, %d cubes \u00d7 %d PEs", r.SKV, r.TQ, r.C, r.P)
	if r.KVHeads > 1 {
		shape = fmt.Sprintf("\n%d key/value heads, S_kv %d, T_q %d, %d cubes \u00d7 %d PEs", r.KVHeads, r.SKV, r.TQ, r.C, r.P)
	}
	whole := func(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) }
	return []chart{
		{prefix + "latency", title + "end-to-end latency (modelled)" + shape, "latency (\u00b5s)", 8,
			func(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) },
			[]series{{"", marked(""), pick(func(r Row) float64 { return r.LatencyNS / 1e3 })}}},
		{prefix + "traffic", title + "operations counted" + shape, "operations", 9, whole,
			[]series{{"IPCQ copy", plain(red), pick(func(r Row) float64 { return float64(r.Summary.Copies) })},
				{"DMA read", plain(green), pick(func(r Row) float64 { return float64(r.Summary.Reads) })},
				{"DMA write", plain(violet), pick(func(r Row) float64 { return float64(r.Summary.Writes) })}}},
		{prefix + "memory", title + "keys and values per PE (f16, one layer)" + shape, "MiB per PE", 8,
			func(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) },
			[]series{{"", marked("cube_repl_pe_tp"), pick(func(r Row) float64 { return float64(r.KVBytes) / (1 << 20) })}}},
		{prefix + "parallelism", title + "total work over active PEs" + shape, "pairs of query and position", 8, whole,
			[]series{{"", marked("cube_repl_pe_sp"), pick(func(r Row) float64 { return float64(r.Total) })}}},
	}
}

func (c *chart) plot(labels []string) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = c.title, c.axis
	p.Title.Padding = vg.Points(6)
	p.Y.Min = 0
	p.NominalX(labels...)
	p.Add(horizontal())
	most := 0.0
	width := vg.Points(54 / float64(len(c.series)))
	if len(c.series) == 1 {
		width = vg.Points(64)
	}
	for i, s := range c.series {
		offset := width * vg.Length(float64(i)-float64(len(c.series)-1)/2)
		for j, v := range s.values {
			bar, err := plotter.NewBarChart(plotter.Values{v}, width)
			if err != nil {
				return nil, err
			}
			bar.XMin, bar.Offset, bar.Color, bar.LineStyle.Width = float64(j), offset, s.colors[j], 0
			p.Add(bar)
			if j == 0 && s.name != "" {
				p.Legend.Add(s.name, bar)
			}
			t, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: float64(j), Y: v}}, Labels: []string{c.label(v)}})
			if err != nil {
				return nil, err
			}
			t.Offset = vg.Point{X: offset, Y: vg.Points(3)}
			t.TextStyle[0].XAlign = draw.XCenter
			t.TextStyle[0].Font.Size = vg.Points(9)
			p.Add(t)
			most = max(most, v)
		}
	}
	p.Legend.Top = true
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(-10), vg.Points(-4)
	p.Legend.Padding = vg.Points(2)
	p.X.Min, p.X.Max = -0.6, float64(len(labels))-0.4
	p.Y.Max = max(most, 1e-9) * 1.15
	if len(c.series) > 1 {
		p.Y.Max = most * 1.3 // the legend's place
	}
	return p, nil
}

// horizontal is a grid of level lines only.
func horizontal() *plotter.Grid {
	g := plotter.NewGrid()
	g.Vertical.Width = 0
	return g
}
