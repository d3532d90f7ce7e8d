// Package figure writes plots to files: PNG to look at, SVG to print or to read the numbers of. It draws nothing itself.
package figure

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"sluice/internal/whole"
)

// Formats are the file extensions that Save knows.
func Formats() []string { return []string{".png", ".svg"} }

// Check tells whether Save can write a file of this name, before anything is computed for it.
func Check(path string) error {
	if ext := strings.ToLower(filepath.Ext(path)); !slices.Contains(Formats(), ext) {
		return fmt.Errorf("figure: %s: extension %q, want one of %s", path, ext, strings.Join(Formats(), ", "))
	}
	return nil
}

// Save draws p, width x height inches, in the format that the extension of path names. The file is written beside its
// final name and renamed, so that a reader never sees half of it.
func Save(path string, p *plot.Plot, width, height float64) error {
	return SaveRow(path, []*plot.Plot{p}, width, height)
}

// SaveRow is Save for several plots side by side, their axes in line.
func SaveRow(path string, ps []*plot.Plot, width, height float64) error {
	if err := Check(path); err != nil {
		return err
	}
	w, err := draw.NewFormattedCanvas(vg.Length(width)*vg.Inch, vg.Length(height)*vg.Inch, strings.ToLower(filepath.Ext(path))[1:])
	if err != nil {
		return fmt.Errorf("figure: %s: %w", path, err)
	}
	tiles := draw.Tiles{Cols: len(ps), Rows: 1}
	if len(ps) > 1 {
		tiles.PadX = vg.Points(18)
	}
	for i, c := range plot.Align([][]*plot.Plot{ps}, tiles, draw.New(w))[0] {
		ps[i].Draw(c)
	}
	return write(path, w)
}

func write(path string, w io.WriterTo) error {
	if err := whole.WriteFile(path, func(f io.Writer) error { _, err := w.WriteTo(f); return err }); err != nil {
		return fmt.Errorf("figure: %s: cannot write: %w", path, err)
	}
	return nil
}
