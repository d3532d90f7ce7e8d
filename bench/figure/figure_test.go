package figure

import (
	"bytes"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gonum.org/v1/plot"
)

func TestSave(t *testing.T) {
	dir := t.TempDir()
	p := plot.New()
	p.Title.Text = "nothing"
	for _, name := range []string{"a.png", "a.SVG"} {
		path := filepath.Join(dir, name)
		if err := Save(path, p, 2, 1); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "png") {
			if img, err := png.DecodeConfig(bytes.NewReader(b)); err != nil || img.Width != 2*img.Height {
				t.Errorf("%s: %+v %v", name, img, err)
			}
		} else if !bytes.Contains(b, []byte("<svg")) || !bytes.Contains(b, []byte("nothing")) {
			t.Errorf("%s: %.200s", name, b)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := Save(filepath.Join(dir, "a.pdf"), p, 2, 1); err == nil || !strings.Contains(err.Error(), ".png, .svg") {
		t.Errorf("pdf: %v", err)
	}
	if err := Save(filepath.Join(dir, "none", "a.png"), p, 2, 1); err == nil {
		t.Error("a directory that is not there was written to")
	}
}
