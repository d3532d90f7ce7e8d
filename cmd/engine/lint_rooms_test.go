package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The order of the house: imports run downwards only. Packages that are not written yet have their place all the same.

const lintModule = "sluice/"

// lintRooms lists, for each room of the house, the rooms it may import besides itself.
var lintRooms = map[string][]string{
	"cmd":      {"bench", "engine", "cuda", "dump", "moe", "kernels"},
	"bench":    {"engine", "dump", "moe", "kernels"},
	"engine":   {"dump", "moe", "kernels"},
	"cuda":     {"engine", "moe", "kernels"},
	"moe":      {"kernels"},
	"kernels":  {},
	"internal": {},                 // narrow helpers: they know no room
	"dump":     {"moe", "kernels"}, // its replays only; the formats are held apart below
}

// lintFloors are the packages inside engine, the highest floor first. A package imports those of lower floors, never a
// neighbour, so that no circle can close. "" is engine itself.
var lintFloors = [][]string{
	{"enginetest"}, // what tests share
	{"ranks", "serve"},
	{"launch"},
	{""},
	{"cpu", "synth"},
	{"model"},
	{"chat"},
	{"tokenizer"},
	{"gguf"},
	{"demo", "machine"},
}

// lintOnly lists, for rooms that may not use all of the rooms below them, which packages they may.
var lintOnly = map[string][]string{
	"cuda": {"engine/model", "engine/machine", "moe", "moe/store", "kernels"},
}

// lintNever are packages of one room of which the first knows nothing of the second: decisions know no storage, which
// answers them in their own words.
var lintNever = [][2]string{{"moe", "moe/store"}}

// lintFloor returns the part of engine that a package belongs to and its floor, -1 if it has none.
func lintFloor(pkg string) (part string, floor int) {
	part, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimPrefix(pkg, "engine"), "/"), "/")
	return part, slices.IndexFunc(lintFloors, func(floor []string) bool { return slices.Contains(floor, part) })
}

// lintArrow says what is wrong with package from importing package to, both by their folders, or "".
func lintArrow(from, to string) string {
	room, _, _ := strings.Cut(from, "/")
	target, _, _ := strings.Cut(to, "/")
	allowed, known := lintRooms[room]
	switch {
	case !known:
		return fmt.Sprintf("%q is no room of the house", room)
	case strings.HasSuffix(to, "test") && !strings.HasSuffix(from, "test"):
		return "that is for tests"
	case target == "internal":
		return "" // helpers that any room may have
	case target != room && !slices.Contains(allowed, target):
		return fmt.Sprintf("%s may import %v", room, allowed)
	case from == "dump":
		return "the formats import nothing of ours"
	}
	if only, ok := lintOnly[room]; ok && target != room && !slices.Contains(only, to) {
		return fmt.Sprintf("%s may import %v", room, only)
	}
	if room == "engine" && target == room {
		part, floor := lintFloor(from)
		if other, below := lintFloor(to); floor < 0 || below <= floor && other != part {
			return fmt.Sprintf("want a lower floor of engine: %q", lintFloors)
		}
	}
	for _, pair := range lintNever {
		if from == pair[0] && to == pair[1] {
			return fmt.Sprintf("%s knows nothing of %s", from, to)
		}
	}
	return ""
}

func TestLintImports(t *testing.T) {
	_, files := lintSources(t)
	for _, f := range files {
		if strings.HasSuffix(f.path, "_test.go") {
			continue // a test may look at any room; the compiler still refuses a cycle
		}
		room, _, _ := strings.Cut(f.path, "/")
		if lintRooms[room] == nil {
			t.Errorf("%s: %q is no room of the house", f.path, room)
			continue
		}
		if _, floor := lintFloor(f.dir()); room == "engine" && floor < 0 {
			t.Errorf("%s: %s is on no floor of engine: %q", f.path, f.dir(), lintFloors)
		}
		for _, spec := range f.ast.Imports {
			target, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			ours, ok := strings.CutPrefix(target, lintModule)
			if !ok {
				continue
			}
			if wrong := lintArrow(f.dir(), ours); wrong != "" {
				t.Errorf("%s imports %s: %s", f.path, target, wrong)
			}
		}
	}
}

// TestLintArrows holds the order itself against what the design says, packages to come included.
func TestLintArrows(t *testing.T) {
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{"cmd/engine", "engine/launch", true},
		{"engine/serve", "engine/launch", true},
		{"engine/launch", "engine", true},
		{"engine/ranks", "engine/model", true},
		{"engine", "engine/cpu", true},
		{"engine/cpu", "engine/model", true},
		{"engine/model", "engine/gguf", true},
		{"engine/chat", "engine/tokenizer", true},
		{"engine/synth", "engine/model", true},
		{"engine/gguf", "internal/whole", true},
		{"engine/serve", "engine/ranks", false},
		{"engine/launch", "engine/serve", false},
		{"engine/launch", "bench/probe", false},
		{"engine", "engine/launch", false},
		{"engine/cpu", "engine", false},
		{"engine/model", "engine/cpu", false},
		{"engine/model", "engine", false},
		{"engine/gguf", "engine/model", false},
		{"engine/demo", "engine/machine", false},
		{"engine/attic", "engine/gguf", false},
		{"engine", "engine/enginetest", false},
		{"cuda", "engine/model", true},
		{"cuda", "engine/machine", true},
		{"cuda", "cuda/driver", true},
		{"cuda/kernels", "moe/store", true},
		{"cuda", "engine", false},
		{"cuda", "engine/cpu", false},
		{"cuda", "engine/launch", false},
		{"cuda", "engine/gguf", false},
		{"cuda", "dump/replay", false},
		{"moe", "moe/store", false},
		{"moe/store", "moe", true},
		{"moe", "kernels", true},
		{"moe", "engine", false},
		{"dump", "moe", false},
		{"dump/replay", "moe/store", true},
		{"internal/whole", "kernels", false},
		{"attic", "kernels", false},
	} {
		if wrong := lintArrow(c.from, c.to); (wrong == "") != c.ok {
			t.Errorf("%s imports %s: %q, want it to be fine: %t", c.from, c.to, wrong, c.ok)
		}
	}
}
