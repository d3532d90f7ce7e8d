package main

import (
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	lintUpstream     = "origin/main"
	lintSubjectMax   = 72  // characters
	lintUnsaidMax    = 100 // lines that a commit may add without a body
	lintCommitFields = "%x01%h%x00%s%x00%b%x00"
)

var (
	// One package or several, then what changes: lower case, unless its first word is a name with more capitals or digits (AVX2).
	lintSubject = regexp.MustCompile(`^[a-z0-9_./-]+(, [a-z0-9_./-]+)*: ([^A-Z\s]|[A-Z]\w*[A-Z0-9])`)
	lintTrailer = regexp.MustCompile(`^[A-Za-z-]+-[Bb]y: `)
)

// lintCommit says what is wrong with a commit's message. added counts the lines that it adds, without files that git does
// not compare by lines (binary ones and generated assembly).
func lintCommit(subject, body string, added int) (faults []string) {
	if !lintSubject.MatchString(subject) || strings.HasSuffix(subject, ".") {
		faults = append(faults, "the subject is not `package: what changes`, lower case and without a full stop")
	}
	if n := utf8.RuneCountInString(subject); n > lintSubjectMax {
		faults = append(faults, fmt.Sprintf("the subject has %d characters, at most %d", n, lintSubjectMax))
	}
	if added > lintUnsaidMax {
		said := false
		for line := range strings.Lines(body) {
			said = said || strings.TrimSpace(line) != "" && !lintTrailer.MatchString(line)
		}
		if !said {
			faults = append(faults, fmt.Sprintf("it adds %d lines and no body says why; above %d one does", added, lintUnsaidMax))
		}
	}
	return faults
}

// lintAdded sums the first column of git's --numstat.
func lintAdded(numstat string) (added int) {
	for line := range strings.Lines(numstat) {
		n, err := strconv.Atoi(strings.SplitN(line, "\t", 2)[0])
		if err == nil { // "-" where git does not count
			added += n
		}
	}
	return added
}

// TestLintCommits reads the commits that upstream does not have yet. Older ones are history; without git or a clone's
// upstream there is nothing to check. It prints what it checked, which `make lint` shows.
func TestLintCommits(t *testing.T) {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", lintRoot}, args...)...).Output()
		return string(out), err
	}
	if _, err := git("rev-parse", "--verify", "--quiet", "refs/remotes/"+lintUpstream); err != nil {
		fmt.Printf("commits: not checked: no %s here (%v)\n", lintUpstream, err)
		return
	}
	span := "refs/remotes/" + lintUpstream + "..HEAD"
	log, err := git("log", "--no-merges", "--no-renames", "--numstat", "--format="+lintCommitFields, span)
	if err != nil {
		fmt.Printf("commits: not checked: git log %s: %v\n", span, err)
		return
	}
	checked := 0
	for i, text := range strings.Split(log, "\x01") {
		f := strings.Split(text, "\x00")
		if i == 0 && text == "" {
			continue
		}
		if len(f) != 4 {
			t.Fatalf("git log: %d fields of a commit, want 4: %q", len(f), text)
		}
		checked++
		for _, fault := range lintCommit(f[1], f[2], lintAdded(strings.TrimLeft(f[3], "\n"))) {
			t.Errorf("commit %s %q: %s", f[0], f[1], fault)
		}
	}
	fmt.Printf("commits: %d of %s..HEAD checked\n", checked, lintUpstream)
}

func TestLintCommit(t *testing.T) {
	long := strings.Repeat("ä", lintSubjectMax-len("kernels: "))
	for _, c := range []struct {
		subject, body string
		added, faults int
	}{
		{"kernels: masks are loaded once", "", 100, 0},
		{"engine/model, engine/cpu: layers as data", "Why.", 5000, 0},
		{"kernels: AVX2 tiles take three rows", "", 1, 0},
		{"kernels: SetISA refuses less", "", 1, 0},
		{".ci: a step more", "", 1, 0},
		{"kernels: " + long, "", 1, 0},
		{"kernels: " + long + "ä", "", 1, 1},
		{"kernels: Masks are loaded once", "", 1, 1},
		{"kernels: masks are loaded once.", "", 1, 1},
		{"kernels:masks", "", 1, 1},
		{"Kernels: masks", "", 1, 1},
		{"masks are loaded once", "", 1, 1},
		{"fixup! kernels: masks", "", 1, 1},
		{"", "", 1, 1},
		{"kernels: masks", "", 101, 1},
		{"kernels: masks", "\n \nSigned-off-by: A <a@b>\n", 101, 1},
		{"Masks " + long, "", 101, 2},
	} {
		if got := lintCommit(c.subject, c.body, c.added); len(got) != c.faults {
			t.Errorf("%q, %d lines: %d faults %q, want %d", c.subject, c.added, len(got), got, c.faults)
		}
	}
	if n := lintAdded("3\t9\ta.go\n-\t-\tb.s\n120\t0\tc d.go\n"); n != 123 {
		t.Errorf("%d lines added, want 123", n)
	}
}
