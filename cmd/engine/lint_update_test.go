package main

import (
	"go/ast"
	"testing"
)

// Golden files are renewed by one flag: a test that has some says so with the name that every other one uses.
func TestLintUpdateFlag(t *testing.T) {
	fset, files := lintSources(t)
	for _, f := range files {
		if !f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 3 {
				return true
			}
			fn, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || fn.Sel.Name != "Bool" {
				return true
			}
			if pkg, ok := fn.X.(*ast.Ident); !ok || pkg.Name != "flag" {
				return true
			}
			if name, ok := call.Args[0].(*ast.BasicLit); !ok || name.Value != `"update"` {
				t.Errorf("%s: a test's switch is called update and renews its golden files", fset.Position(n.Pos()))
			}
			return true
		})
	}
}
