package main

import (
	"bytes"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every variable of the environment that begins with SLUICE_ has its row in CONTRIBUTING.md, and every row its variable. A
// macro of C is none: it is defined in a source or by -D.
func TestLintVariables(t *testing.T) {
	name := regexp.MustCompile(`\bSLUICE_[A-Z0-9_]*[A-Z0-9]\b`)
	macro := regexp.MustCompile(`(?:#\s*define\s+|-D\s*)(SLUICE_[A-Z0-9_]*[A-Z0-9])\b`)
	kinds := map[string]bool{".go": true, ".sh": true, ".c": true, ".cc": true, ".cu": true, ".h": true, ".mk": true, ".py": true, ".js": true}
	used, macros := map[string]string{}, map[string]bool{} // a file that names it
	lintWalk(t, func(file string) {
		if base := path.Base(file); !kinds[path.Ext(file)] && base != "Makefile" && file != ".ci/run" || base == "lint_variables_test.go" {
			return
		}
		src, err := os.ReadFile(filepath.Join(lintRoot, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range name.FindAll(src, -1) {
			used[string(m)] = file
		}
		for _, m := range macro.FindAllSubmatch(src, -1) {
			macros[string(m[1])] = true
		}
	})
	page, err := os.ReadFile(filepath.Join(lintRoot, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for line := range bytes.Lines(page) {
		if first, _, ok := strings.Cut(strings.TrimPrefix(string(line), "|"), "|"); ok && line[0] == '|' {
			for _, v := range name.FindAllString(first, -1) {
				if rows[v] {
					t.Errorf("CONTRIBUTING.md has two rows for %s", v)
				}
				rows[v] = true
			}
		}
	}
	for v, file := range used {
		if !macros[v] && !rows[v] {
			t.Errorf("%s names the variable %s: the table in CONTRIBUTING.md does not say what it switches on", file, v)
		}
	}
	for v := range rows {
		if used[v] == "" {
			t.Errorf("CONTRIBUTING.md has a row for %s, which nothing names", v)
		}
	}
	if len(used) == 0 || len(macros) == 0 {
		t.Errorf("found %d names and %d macros: the search is broken", len(used), len(macros))
	}
}
