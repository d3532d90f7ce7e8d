package dump

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice/dump/scripttest"
)

// The replay script that traces were made for reads ours and prints what this side's reader adds up to.
func TestReplayScriptReadsOurTraces(t *testing.T) {
	python, script := scripttest.Script(t, "000", "route-drop-replay.py")
	dir := t.TempDir()
	scripttest.Write(t, dir, map[string]string{"replay.py": script, "trace_io.py": scripttest.TraceIO})
	for i, c := range []struct{ dropping, seqs bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		dropping := c.dropping
		path := filepath.Join(dir, fmt.Sprintf("dropping-%v-%d.csv", dropping, i))
		writeRandomTrace(t, path, dropping, c.seqs)
		got, err := exec.Command(python, filepath.Join(dir, "replay.py"), path).Output()
		if ee := (*exec.ExitError)(nil); errors.As(err, &ee) {
			t.Fatalf("%v: %s", err, ee.Stderr)
		}
		must(t, err)
		want := replay(t, path)
		prefill := fmt.Sprintf("[PREFILL] %d routing cells", map[bool]int{false: 28, true: 108}[c.seqs])
		if !strings.Contains(want, "[DECODE] 40 routing cells") || !strings.Contains(want, prefill) || dropping != strings.Contains(want, "dropping was ON") {
			t.Fatalf("expectation is hollow:\n%s", want)
		}
		if string(got) != want {
			t.Errorf("script printed\n%s\nwant\n%s", got, want)
		}
	}
}

// No weight is unknown here: the script means to leave such rows out, yet float("nan") does not raise, and its sums
// turn into nan. seqs: the passes that decode have two tokens of another sequence's prompt each.
func writeRandomTrace(t *testing.T, path string, dropping, seqs bool) {
	const nLayer, nExpert, k = 4, 16, 4
	w, err := CreateTrace(path, TraceMeta{Model: "a = b.gguf", Arch: "qwen3moe", NLayer: nLayer, NExpert: nExpert, NUsed: k,
		Layers: []TraceLayer{{0, 1000, 10}, {1, 1000, 10}, {2, 900, 10}, {3, 900, 10}}, Extra: [][2]string{{"seed", "1"}, {"flags", "-t 4 x=y"}},
		Ahead: dropping, Seqs: seqs}) // columns that the script does not know
	must(t, err)
	rng := rand.New(rand.NewPCG(7, 8))
	call := func(pass int64, layer int, rows ...Row) {
		c := TraceCall{Rows: rows, Pass: pass, Layer: layer, T: len(rows), K: k, Resident: make([]uint8, nExpert), ReadBytes: make([]int64, nExpert)}
		if dropping {
			c.Ahead, c.AheadBytes = []int32{int32(layer), 9}, 900
		}
		for e := range nExpert {
			if c.Resident[e] = uint8(rng.IntN(3)); c.Resident[e] == Miss {
				c.ReadBytes[e] = 900 + int64(e)
			}
		}
		for _, r := range rows {
			for _, e := range rng.Perm(nExpert)[:k] {
				c.Expert = append(c.Expert, int32(e))
				weight := rng.Float32() / 2
				c.Weight = append(c.Weight, weight)
				drop := dropping && r.Phase == Decode && c.Resident[e] == Miss && weight < 0.2
				if c.Dropped = append(c.Dropped, drop); drop {
					c.ReadBytes[e] = 0
				}
			}
		}
		must(t, w.Call(&c))
	}
	var prompt []Row
	for pos := range int32(7) {
		prompt = append(prompt, Row{Phase: Prefill, Step: pos})
	}
	for layer := range nLayer {
		call(1, layer, prompt...)
	}
	for pos := range int32(10) {
		rows := []Row{{Phase: Decode, Step: 7 + pos}}
		if seqs {
			other := Row{Seq: 1, Turn: 1, Phase: Prefill, Step: 2 * pos}
			rows = append(rows, other, other)
			rows[2].Step++
		}
		for layer := range nLayer {
			call(int64(2+pos), layer, rows...)
		}
	}
	must(t, w.Close())
}

// replay computes from our reader what the script prints, row for row and in the same order of summation.
func replay(t *testing.T, path string) string {
	tr, rows, err := readTrace(bytes.NewReader(readFile(t, path)))
	if err != io.EOF {
		t.Fatal(err)
	}
	m := tr.Meta()
	var b strings.Builder
	line := strings.Repeat("=", 78)
	fmt.Fprintf(&b, "%s\n%s   arch=%s  n_expert=%d  k=%d\n%s\n", line, filepath.Base(path), m.Arch, m.NExpert, m.NUsed, line)
	pct := func(num, den float64) float64 {
		if den == 0 {
			return 0
		}
		return 100 * num / den
	}
	for _, phase := range []int{Decode, Prefill} {
		type key struct{ turn, step, layer int }
		var cells [][]TraceRow
		index := make(map[key]int)
		n, misses, dropped := 0, 0, 0
		for _, r := range rows {
			if r.Phase != phase || r.WeightUnknown {
				continue
			}
			k := key{r.Turn, r.Step, r.Layer}
			if _, ok := index[k]; !ok {
				index[k] = len(cells)
				cells = append(cells, nil)
			}
			cells[index[k]] = append(cells[index[k]], r)
			n++
			if r.Residency == Miss {
				misses++
			}
			if r.Dropped {
				dropped++
			}
		}
		// sums over all rows; lost says which of them a policy gives up
		sums := func(lost func(cell []TraceRow, i int) bool) (missBytes, savedBytes, mass, lostMass float64, kept map[int]int) {
			kept = make(map[int]int)
			for _, cell := range cells {
				n := 0
				for i, r := range cell {
					mass += r.Weight
					out := lost(cell, i)
					if r.Residency == Miss {
						missBytes += float64(r.ExpertBytes)
						if out {
							savedBytes += float64(r.ExpertBytes)
						}
					}
					if out {
						lostMass += r.Weight
					} else {
						n++
					}
				}
				kept[n]++
			}
			return
		}
		fmt.Fprintf(&b, "\n[%s] %d routing cells, %d routed experts, %.1f%% misses\n", []string{"PREFILL", "DECODE"}[phase], len(cells), n, pct(float64(misses), float64(n)))
		if dropped > 0 {
			_, _, mass, lost, _ := sums(func(cell []TraceRow, i int) bool { return cell[i].Dropped })
			fmt.Fprintf(&b, "  recorded: dropping was ON for this run -- %d routings dropped (%.1f%%), %.2f%% of the weight mass\n",
				dropped, pct(float64(dropped), float64(n)), pct(lost, mass))
		}
		uniform := 1 / float64(m.NUsed)
		fmt.Fprintf(&b, "\n  cache-aware threshold, as a fraction of the uniform share 1/k = %.2f%%\n", 100*uniform)
		fmt.Fprintf(&b, "  %6s  %8s  %9s  %10s   surviving experts per cell\n", "frac", "thr", "io_saved", "mass_lost")
		for _, frac := range []float64{0.25, 0.5, 0.75, 1} {
			thr := uniform * frac
			mb, sb, mass, lost, kept := sums(func(cell []TraceRow, i int) bool {
				best := 0
				for j, r := range cell {
					if r.Weight > cell[best].Weight {
						best = j
					}
				}
				return cell[i].Residency == Miss && i != best && cell[i].Weight < thr
			})
			fmt.Fprintf(&b, "  %6.2f  %7.2f%%  %8.1f%%  %9.2f%%   ", frac, 100*thr, pct(sb, mb), pct(lost, mass))
			var counts []int
			for c := range kept {
				counts = append(counts, c)
			}
			slices.Sort(counts)
			for i, c := range counts {
				if i > 0 {
					b.WriteByte(' ')
				}
				fmt.Fprintf(&b, "%d:%.0f%%", c, pct(float64(kept[c]), float64(len(cells))))
			}
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "\n  static-k baseline (--n-expert-used), same rows, for comparison at equal io_saved\n")
		fmt.Fprintf(&b, "  %6s  %9s  %10s\n", "keep_k", "io_saved", "mass_lost")
		for keep := m.NUsed - 1; keep > 0; keep-- {
			mb, sb, mass, lost, _ := sums(func(cell []TraceRow, i int) bool { return cell[i].Slot >= keep })
			fmt.Fprintf(&b, "  %6d  %8.1f%%  %9.2f%%\n", keep, pct(sb, mb), pct(lost, mass))
		}
	}
	b.WriteByte('\n')
	return b.String()
}
