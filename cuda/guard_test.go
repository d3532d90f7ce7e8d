package cuda_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestEmulatedGuards: a test that makes the emulated device pretend something asks first whether the device is one. On a
// real one the variables do nothing.
func TestEmulatedGuards(t *testing.T) {
	pretending := 0
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || path == "guard_test.go" {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		for _, d := range f.Decls {
			pretends, asks := false, false
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.BasicLit:
					pretends = pretends || strings.Contains(n.Value, "SLUICE_EMU_")
					asks = asks || strings.Contains(n.Value, "emulated")
				case *ast.Ident:
					asks = asks || n.Name == "emulatedOnly"
				}
				return true
			})
			if pretends {
				pretending++
			}
			if f, ok := d.(*ast.FuncDecl); pretends && !asks {
				name := "a declaration"
				if ok {
					name = f.Name.Name
				}
				t.Errorf("%s: %s sets SLUICE_EMU_ variables and does not ask whether the device is emulated", path, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pretending == 0 {
		t.Skip("the sources are not beside the test")
	}
}
