package roofline

import (
	"fmt"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"sluice/bench/figure"
)

var (
	ink    = color.RGBA{0x22, 0x22, 0x22, 0xff}
	grey   = color.RGBA{0x99, 0x99, 0x99, 0xff}
	blue   = color.RGBA{0x3b, 0x6e, 0xa5, 0xff}
	red    = color.RGBA{0xc0, 0x50, 0x4d, 0xff}
	green  = color.RGBA{0x6b, 0x8e, 0x23, 0xff}
	violet = color.RGBA{0x80, 0x64, 0xa2, 0xff}
)

// SavePlot draws seconds per token over batch size, both logarithmic: each term, their sum, B* and the knee as upright
// lines, and the measured points. With a mixture of experts the terms are its own and the dense estimate of the weights'
// read is dashed. The format is that of path's extension, .png or .svg.
func (r *Report) SavePlot(path string) error {
	p, err := r.plot()
	if err != nil {
		return err
	}
	return figure.Save(path, p, 8, 5)
}

func (r *Report) plot() (*plot.Plot, error) {
	p := plot.New()
	machine, model := r.Machine.Name, r.Model.Name
	if machine == "" {
		machine = fmt.Sprintf("%.4g FLOP/s, %.4g B/s", r.Machine.PeakFlops, r.Machine.Bandwidth)
	}
	if model == "" {
		model = fmt.Sprintf("%.3g active parameters", r.ActiveParams)
	}
	p.Title.Text = fmt.Sprintf("%s on %s, context %d", model, machine, r.Context)
	p.Title.Padding = vg.Points(6)
	p.X.Label.Text, p.Y.Label.Text = "batch (tokens that share a step)", "time per token"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = logTicks{plainNumber}, logTicks{duration}
	p.Legend.Top = true
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	p.Legend.Padding = vg.Points(2)
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(-10), vg.Points(-8)
	p.Add(plotter.NewGrid())

	c := &curves{p: p, minX: math.Inf(1), maxX: math.Inf(-1), minY: math.Inf(1), maxY: math.Inf(-1)}
	if moe := r.MoE; moe != nil && len(moe.Curve) > 0 {
		c.line("weights, dense estimate", grey, true, len(r.Curve), func(i int) (float64, float64) { return x(r.Curve[i].Batch), r.Curve[i].Weight })
		at := func(f func(MoEPoint) float64) func(int) (float64, float64) {
			return func(i int) (float64, float64) { return x(moe.Curve[i].Batch), f(moe.Curve[i]) }
		}
		n := len(moe.Curve)
		c.line("weights, by routing", blue, false, n, at(func(q MoEPoint) float64 { return q.Weight }))
		c.line("streamed experts", violet, false, n, at(func(q MoEPoint) float64 { return q.Stream }))
		c.line("arithmetic", red, false, n, at(func(q MoEPoint) float64 { return q.Compute }))
		c.line("keys and values", green, false, n, at(func(q MoEPoint) float64 { return q.KV }))
		c.line("sum", ink, false, n, at(func(q MoEPoint) float64 { return q.Total }))
		c.upright("B*", moe.CriticalBatch)
		c.upright("knee", moe.KneeBatch)
	} else {
		at := func(f func(Point) float64) func(int) (float64, float64) {
			return func(i int) (float64, float64) { return x(r.Curve[i].Batch), f(r.Curve[i]) }
		}
		n := len(r.Curve)
		c.line("weights", blue, false, n, at(func(q Point) float64 { return q.Weight }))
		c.line("arithmetic", red, false, n, at(func(q Point) float64 { return q.Compute }))
		c.line("keys and values", green, false, n, at(func(q Point) float64 { return q.KV }))
		c.line("sum", ink, false, n, at(func(q Point) float64 { return q.Total }))
		c.upright("B*", &r.CriticalBatch)
		c.upright("knee", r.KneeBatch)
	}
	c.measured(r.Measured)
	if c.err != nil {
		return nil, fmt.Errorf("roofline: plot: %w", c.err)
	}
	c.frame()
	return p, nil
}

// logTicks are the powers of ten, written by label.
type logTicks struct{ label func(v float64) string }

func (t logTicks) Ticks(lo, hi float64) []plot.Tick {
	ticks := plot.LogTicks{Prec: -1}.Ticks(lo, hi)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = t.label(ticks[i].Value)
		}
	}
	return ticks
}

func plainNumber(v float64) string {
	if v >= 1000 && v < 1e7 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// duration writes seconds in the unit that leaves 1 to 999 of it.
func duration(sec float64) string {
	for _, u := range []struct {
		name string
		size float64
	}{{"s", 1}, {"ms", 1e-3}, {"\u00b5s", 1e-6}, {"ns", 1e-9}} {
		if sec > 0.999*u.size {
			return plainNumber(sec/u.size) + " " + u.name
		}
	}
	return plainNumber(sec) + " s"
}

// x is where a batch stands: the formulas take 0 for 1, and a logarithmic axis has no 0.
func x(batch int) float64 { return float64(max(1, batch)) }

// curves gathers what is drawn, its extent and the first error.
type curves struct {
	p                      *plot.Plot
	minX, maxX, minY, maxY float64
	uprights               []upright
	err                    error
}

type upright struct {
	name string
	at   float64
}

func (c *curves) extend(x, y float64) {
	c.minX, c.maxX, c.minY, c.maxY = min(c.minX, x), max(c.maxX, x), min(c.minY, y), max(c.maxY, y)
}

// line draws a term. Zeros are left out: the axis is logarithmic, and a term of 0 is one that does not apply.
func (c *curves) line(name string, col color.Color, dashed bool, n int, at func(i int) (x, y float64)) {
	var pts plotter.XYs
	for i := range n {
		if x, y := at(i); y > 0 {
			pts = append(pts, plotter.XY{X: x, Y: y})
			c.extend(x, y)
		}
	}
	if len(pts) == 0 || c.err != nil {
		return
	}
	l, err := plotter.NewLine(pts)
	if err != nil {
		c.err = err
		return
	}
	l.Color, l.Width = col, vg.Points(1.6)
	if dashed {
		l.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
	}
	c.p.Add(l)
	c.p.Legend.Add(name, l)
}

// upright marks a batch size; one outside the curve's range is left out by frame.
func (c *curves) upright(name string, batch *float64) {
	if batch != nil {
		c.uprights = append(c.uprights, upright{name, *batch})
	}
}

func (c *curves) measured(ms []Measured) {
	if len(ms) == 0 || c.err != nil {
		return
	}
	pts := make(plotter.XYs, len(ms))
	labels := make([]string, len(ms))
	for i, m := range ms {
		pts[i] = plotter.XY{X: x(m.Batch), Y: m.Seconds}
		labels[i] = m.Label
		c.extend(pts[i].X, m.Min)
		c.extend(pts[i].X, m.Max)
	}
	s, err := plotter.NewScatter(pts)
	if err != nil {
		c.err = err
		return
	}
	s.GlyphStyle = draw.GlyphStyle{Color: red, Radius: vg.Points(4), Shape: draw.CircleGlyph{}}
	l, err := plotter.NewLabels(plotter.XYLabels{XYs: pts, Labels: labels})
	if err != nil {
		c.err = err
		return
	}
	l.Offset = vg.Point{X: vg.Points(6), Y: vg.Points(3)}
	c.p.Add(s, l)
	c.p.Legend.Add("measured", s)
}

// frame sets the axes, with room around one point or one value, and draws what needs their extent.
func (c *curves) frame() {
	if c.minX == c.maxX {
		c.minX, c.maxX = c.minX/2, c.maxX*2
	}
	c.minY, c.maxY = c.minY/1.5, c.maxY*math.Sqrt(c.maxY/c.minY) // the upper third is the legend's
	for i, u := range c.uprights {
		if u.at < c.minX || u.at > c.maxX {
			continue
		}
		l, err := plotter.NewLine(plotter.XYs{{X: u.at, Y: c.minY}, {X: u.at, Y: c.maxY}})
		if err != nil {
			continue // two finite points are no error
		}
		l.Color, l.Dashes = grey, []vg.Length{vg.Points(2), vg.Points(2)}
		c.p.Add(l)
		t, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: u.at, Y: c.minY}}, Labels: []string{fmt.Sprintf("%s = %.4g", u.name, u.at)}})
		if err != nil {
			continue
		}
		t.Offset = vg.Point{X: vg.Points(3), Y: vg.Points(float64(4 + 14*i))} // B* and knee may stand close together
		c.p.Add(t)
	}
	c.p.X.Min, c.p.X.Max, c.p.Y.Min, c.p.Y.Max = c.minX, c.maxX, c.minY, c.maxY
}
