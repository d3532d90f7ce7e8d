package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"sluice/engine/demo"
)

// secondRead calls act before it says that the input has ended.
type secondRead struct {
	io.Reader
	act func()
}

func (r *secondRead) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n == 0 && r.act != nil {
		r.act()
		r.act = nil
	}
	return n, err
}

// TestModelChangedInFailure: it is said too where something went wrong, which it may be the reason of.
func TestModelChangedInFailure(t *testing.T) {
	file := demoFile(t)
	time.Sleep(20 * time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	in := &secondRead{Reader: strings.NewReader("Who art thou?\n"), act: func() {
		if err := os.WriteFile(file, demo.Model(), 0o644); err != nil {
			t.Error(err)
		}
		cancel()
	}}
	var out, errs bytes.Buffer
	code := run(ctx, []string{"run", "-m", file, "--chat", "-n", "4", "--temp", "0"}, streams{in, &out, &errs})
	if code != 1 || !strings.Contains(errs.String(), file+": modified at ") {
		t.Errorf("interrupted: exit %d\n%s", code, errs.String())
	}
}

// TestModelChanged: the answers of a model that is written to meanwhile, at the same size, are not passed off as good.
func TestModelChanged(t *testing.T) {
	for _, change := range []bool{false, true} {
		file := demoFile(t)
		time.Sleep(20 * time.Millisecond) // a file's clock has ticks
		in := &secondRead{Reader: strings.NewReader("Who art thou?\n")}
		if change {
			in.act = func() {
				if err := os.WriteFile(file, demo.Model(), 0o644); err != nil {
					t.Error(err)
				}
			}
		}
		var out, errs bytes.Buffer
		code := run(context.Background(), []string{"run", "-m", file, "--chat", "-n", "4", "--temp", "0", "--cache-mb", "4"}, streams{in, &out, &errs})
		said := strings.Contains(errs.String(), file+": modified at ")
		if code != map[bool]int{true: 1}[change] || said != change {
			t.Errorf("changed %t: exit %d\n%s", change, code, errs.String())
		}
	}
}
