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

// Every file that a generator wrote is marked in .gitattributes, and every mark there meets a file.
func TestLintGenerated(t *testing.T) {
	attributes, err := os.ReadFile(filepath.Join(lintRoot, ".gitattributes"))
	if err != nil {
		t.Fatal(err)
	}
	met := map[string]bool{}
	for line := range strings.Lines(string(attributes)) {
		f := strings.Fields(line)
		if len(f) > 1 && strings.HasPrefix(f[0], "/") && strings.Contains(line, "linguist-generated") {
			met[f[0]] = false
		}
	}
	mark := regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	lintWalk(t, func(name string) {
		if ext := path.Ext(name); ext != ".go" && ext != ".s" {
			return
		}
		src, err := os.ReadFile(filepath.Join(lintRoot, name))
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := bytes.Cut(src, []byte("\npackage "))
		if !mark.Match(head) {
			return
		}
		marked := false
		for pattern := range met {
			if ok, err := path.Match(pattern, "/"+name); err != nil {
				t.Fatalf(".gitattributes: %s: %v", pattern, err)
			} else if ok {
				met[pattern], marked = true, true
			}
		}
		if !marked {
			t.Errorf("%s is generated: .gitattributes has no linguist-generated for it", name)
		}
	})
	for pattern, ok := range met {
		if files, _ := filepath.Glob(filepath.Join(lintRoot, filepath.FromSlash(pattern))); !ok && len(files) == 0 {
			t.Errorf(".gitattributes: %s is no file", pattern)
		}
	}
}
