package quality

import (
	"fmt"
	"image/color"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"sluice/bench/figure"
)

var (
	blue = color.RGBA{0x3b, 0x6e, 0xa5, 0xff}
	red  = color.RGBA{0xc0, 0x50, 0x4d, 0xff}
)

// PlotFiles are the files that a --plot value names: itself with an extension of figure.Formats, a name without extension in
// each of them. Another extension is an error.
func PlotFiles(name string) ([]string, error) {
	if filepath.Ext(name) == "" {
		var out []string
		for _, ext := range figure.Formats() {
			out = append(out, name+ext)
		}
		return out, nil
	}
	return []string{name}, figure.Check(name)
}

// SavePlot draws perplexity and divergence over the bytes read, one curve for the thresholds and one for fewer experts, in
// the format of path's extension.
func (r *Report) SavePlot(path string) error {
	perplexity, err := r.panel("perplexity", func(p Point) float64 { return p.Perplexity })
	if err != nil {
		return err
	}
	kl, err := r.panel("KL divergence from the undropped run, nats per token", func(p Point) float64 { return p.KL })
	if err != nil {
		return err
	}
	return figure.SaveRow(path, []*plot.Plot{perplexity, kl}, 11, 4.5)
}

func (r *Report) panel(label string, value func(Point) float64) (*plot.Plot, error) {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "read from storage, MiB", label
	p.X.Padding, p.Y.Padding = vg.Points(6), vg.Points(6)
	p.Legend.Top = true
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(-6), vg.Points(-4)
	p.Add(plotter.NewGrid())
	for _, c := range []struct {
		kind, legend string
		color        color.Color
		shape        draw.GlyphDrawer
		name         func(Point) string
		above        bool
	}{
		{Threshold, "drop below a fraction of 1/k", blue, draw.CircleGlyph{}, func(q Point) string { return fmt.Sprintf("%g", q.DropFrac) }, false},
		{TopK, "fewer experts per token", red, draw.BoxGlyph{}, func(q Point) string { return fmt.Sprintf("k=%d", q.NExpertUsed) }, true},
	} {
		var pts plotter.XYs
		var names []string
		for _, q := range r.curve(c.kind) {
			pts = append(pts, plotter.XY{X: float64(q.BytesRead) / (1 << 20), Y: value(q)})
			if q.Kind == Undropped {
				names = append(names, "")
			} else {
				names = append(names, c.name(q))
			}
		}
		line, dots, err := plotter.NewLinePoints(pts)
		if err != nil {
			return nil, fmt.Errorf("quality: plot: %w", err)
		}
		line.Color, line.Width = c.color, vg.Points(1.6)
		dots.GlyphStyle = draw.GlyphStyle{Color: c.color, Radius: vg.Points(3.2), Shape: c.shape}
		text, err := plotter.NewLabels(plotter.XYLabels{XYs: pts, Labels: names})
		if err != nil {
			return nil, fmt.Errorf("quality: plot: %w", err)
		}
		// The curves run close together: one is lettered above its points, the other below.
		text.Offset = vg.Point{X: vg.Points(4), Y: vg.Points(-14)}
		if c.above {
			text.Offset.Y = vg.Points(4)
		}
		for i := range text.TextStyle {
			text.TextStyle[i].Color = c.color
			text.TextStyle[i].Font.Size = vg.Points(9)
		}
		p.Add(line, dots, text)
		p.Legend.Add(c.legend, line, dots)
	}
	room := p.Y.Max - p.Y.Min
	p.X.Min, p.X.Max = 0, p.X.Max*1.03
	p.Y.Min, p.Y.Max = p.Y.Min-0.06*room, p.Y.Max+0.12*room // letters below the lowest point, the legend above all
	return p, nil
}
