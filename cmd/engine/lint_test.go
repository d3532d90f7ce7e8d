package main

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The source rules that go vet does not know. They stand here because cmd/engine is the one package every build has.

const (
	lintRoot     = "../.."
	lintMaxLines = 800
)

// lintFile is one Go file of the repository, testdata excepted.
type lintFile struct {
	path string // relative to the root, slashes
	src  []byte
	ast  *ast.File
	test bool
}

func (f *lintFile) dir() string { return path.Dir(f.path) }

// lintWalk calls fn for every file of the repository, with its path relative to the root. Folders whose content is not
// written by us (version control, build output, golden data) are left out.
func lintWalk(t *testing.T, fn func(name string)) {
	t.Helper()
	err := filepath.WalkDir(lintRoot, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch d.Name() {
			case ".git", "bin", "testdata", "node_modules":
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(lintRoot, p)
		if err != nil {
			return err
		}
		if d.Type().IsRegular() {
			fn(filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func lintSources(t *testing.T) (*token.FileSet, []*lintFile) {
	t.Helper()
	fset := token.NewFileSet()
	var files []*lintFile
	lintWalk(t, func(name string) {
		if path.Ext(name) != ".go" {
			return
		}
		src, err := os.ReadFile(filepath.Join(lintRoot, name))
		if err != nil {
			t.Fatal(err)
		}
		tree, err := parser.ParseFile(fset, name, src, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, &lintFile{path: name, src: src, ast: tree, test: isTest(name)})
	})
	if len(files) < 2 {
		t.Fatalf("found %d Go files under %s: the walk is broken", len(files), lintRoot)
	}
	return fset, files
}

// isTest reports whether a file is part of tests alone: by its name, or in a package that serves only tests.
func isTest(name string) bool {
	return strings.HasSuffix(name, "_test.go") || strings.HasSuffix(path.Dir(name), "test")
}

func TestLintNoEnvironment(t *testing.T) {
	fset, files := lintSources(t)
	readers := map[string]bool{"Getenv": true, "LookupEnv": true, "Environ": true, "ExpandEnv": true}
	for _, f := range files {
		if f.test || strings.HasPrefix(f.path, "cmd/") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || !readers[sel.Sel.Name] {
				return true
			}
			if pkg, ok := sel.X.(*ast.Ident); ok && (pkg.Name == "os" || pkg.Name == "syscall" || pkg.Name == "unix") {
				t.Errorf("%s: %s.%s: only cmd reads the environment", fset.Position(n.Pos()), pkg.Name, sel.Sel.Name)
			}
			return true
		})
	}
}

func TestLintFormat(t *testing.T) {
	_, files := lintSources(t)
	for _, f := range files {
		want, err := format.Source(f.src)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want, f.src) {
			t.Errorf("%s: gofmt would change it", f.path)
		}
	}
}

func TestLintPackageComments(t *testing.T) {
	_, files := lintSources(t)
	documented := map[string]bool{}
	for _, f := range files {
		if f.test {
			continue
		}
		documented[f.dir()] = documented[f.dir()] || f.ast.Doc != nil
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s: no file has a package comment", dir)
		}
	}
}

func TestLintFileLength(t *testing.T) {
	_, files := lintSources(t)
	for _, f := range files {
		if n := bytes.Count(f.src, []byte("\n")); n > lintMaxLines && !ast.IsGenerated(f.ast) {
			t.Errorf("%s: %d lines, at most %d: what second idea has moved in?", f.path, n, lintMaxLines)
		}
	}
}

func TestLintUnfinished(t *testing.T) {
	marks := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME)\b`)
	texts := map[string]bool{".go": true, ".s": true, ".md": true, ".sh": true, ".cu": true, ".cuh": true}
	lintWalk(t, func(name string) {
		if !texts[path.Ext(name)] && name != "Makefile" && name != ".ci/run" {
			return
		}
		src, err := os.ReadFile(filepath.Join(lintRoot, name))
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range bytes.Split(src, []byte("\n")) {
			if m := marks.Find(line); m != nil {
				t.Errorf("%s:%d: %s: finish it or take it out", name, i+1, m)
			}
		}
	})
}

// Every page of docs has its line in docs/README.md, and every page linked there exists.
func TestLintDocsIndex(t *testing.T) {
	index, err := os.ReadFile(filepath.Join(lintRoot, "docs/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	linked := map[string]bool{}
	for _, m := range regexp.MustCompile(`\]\(([^)#]+)`).FindAllSubmatch(index, -1) {
		linked[path.Join("docs", string(m[1]))] = true
	}
	lintWalk(t, func(name string) {
		if strings.HasPrefix(name, "docs/") && path.Ext(name) == ".md" && name != "docs/README.md" && !linked[name] {
			t.Errorf("%s has no line in docs/README.md", name)
		}
	})
	for name := range linked {
		if _, err := os.Stat(filepath.Join(lintRoot, name)); err != nil {
			t.Errorf("docs/README.md links to %s: %v", name, err)
		}
	}
}

// Every module that go.mod asks for is explained in docs/dependencies.md.
func TestLintDependencies(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(lintRoot, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(lintRoot, "docs/dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^(?:require)?\s+(\S+\.\S+/\S+) v\d`).FindAllSubmatch(mod, -1) {
		if !bytes.Contains(page, m[1]) {
			t.Errorf("go.mod requires %s: docs/dependencies.md does not say what for", m[1])
		}
	}
}
