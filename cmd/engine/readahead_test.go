package main

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sluice/bench"
	"sluice/dump/inspect"
	"sluice/dump/replay"
)

// TestReadAheadAuto: experts are read ahead where that pays, every session of a command that drops reads on demand alone, and
// the choice is said.
func TestReadAheadAuto(t *testing.T) {
	file := demoFile(t)
	run := []string{"run", "-m", file, "-p", "In the beginning", "-n", "20", "--ignore-eos", "--temp", "0", "--json"}
	var tokens [][]int32
	for _, c := range []struct {
		args []string
		mode string
		said string // "": nothing
	}{
		{nil, "", ""}, // all in memory, no cache
		{[]string{"--cache-mb", "4"}, "next-layer", "experts: read ahead: next-layer (not all experts fit in the cache)"},
		{[]string{"--cache-mb", "4", "--prefetch-mb", "1"}, "next-layer", "experts: read ahead: next-layer"},
		{[]string{"--cache-mb", "4", "--prefetch", "off"}, "", "experts: read ahead: off\n"},
		{[]string{"--cache-mb", "4", "--prefetch", "last-token"}, "last-token", "experts: read ahead: last-token\n"},
		{[]string{"--cache-mb", "16"}, "", "experts: read ahead: off (all experts fit in the cache)"},
		{[]string{"--cache-mb", "4", "--drop-cold-experts", "0.5"}, "", "experts: read ahead: off (with dropping"},
		{[]string{"--cache-mb", "4", "--drop-cold-experts", "0.5", "--prefetch", "next-layer"}, "next-layer", "experts: read ahead: next-layer\n"},
	} {
		r := call(t, append(slices.Clone(run), c.args...)...)
		r.want(t, 0, c.said)
		if c.said == "" && strings.Contains(r.err, "read ahead") {
			t.Errorf("%v: %s", c.args, r.err)
		}
		doc := decode[reproduceDoc](t, r)
		mode := ""
		if doc.Prefetch != nil {
			mode = doc.Prefetch.Mode
		}
		if mode != c.mode {
			t.Errorf("%v: reads ahead %q, want %q", c.args, mode, c.mode)
		}
		if doc.Drop.Dropped == 0 {
			tokens = append(tokens, doc.Tokens)
		}
	}
	for _, x := range tokens {
		if len(tokens) != 6 || !slices.Equal(x, tokens[0]) {
			t.Fatalf("tokens without dropping differ: %v", tokens)
		}
	}

	modes := func(args ...string) (out []string) {
		doc := decode[struct {
			Variants []struct {
				Config   bench.Variant
				Prefetch *prefetchJSON
			}
		}](t, call(t, append([]string{"bench", "-m", file, "--pp", "", "--tg", "4", "--repeat", "1", "--json"}, args...)...))
		for _, v := range doc.Variants {
			if v.Prefetch == nil {
				out = append(out, "off")
			} else {
				out = append(out, v.Prefetch.Mode)
			}
		}
		return out
	}
	if got := modes("--cache-mb", "0,4,16"); !slices.Equal(got, []string{"next-layer", "off", "off"}) { // what has no cache comes last
		t.Errorf("budgets: %v", got)
	}
	if got := modes("--cache-mb", "0,4", "--prefetch", "last-token", "--prefetch-mb", "1"); !slices.Equal(got, []string{"last-token", "off"}) {
		t.Errorf("a mode by name where one setting has no cache: %v", got)
	}
	if got := modes("--cache-mb", "4,16", "--prefetch-mb", "1"); !slices.Equal(got, []string{"next-layer", "off"}) {
		t.Errorf("a bound that one setting has a use for: %v", got)
	}
	bench := []string{"bench", "-m", file, "--pp", "", "--tg", "4", "--repeat", "1"}
	call(t, append(slices.Clone(bench), "--cache-mb", "16,20", "--prefetch-mb", "1")...).want(t, 2, "--prefetch-mb 1 has no effect: no setting reads ahead")
	for form, want := range map[string]string{"": "prefetch", "--csv": ",next-layer,", "--go-bench": "/prefetch=next-layer"} {
		args := append(slices.Clone(bench), "--cache-mb", "4,16")
		if form != "" {
			args = append(args, form)
		}
		if r := call(t, args...); !strings.Contains(r.out, want) {
			t.Errorf("%s: no %q in\n%s", form, want, r.out)
		}
	}
	if r := call(t, append(run, "--cache-mb", "2", "--cache-force", "-b", "1")...); !strings.Contains(r.err, "read ahead: off (the cache does not hold one token's experts)") {
		t.Errorf("a forced budget: %s", r.err)
	}
	if got := modes("--cache-mb", "4", "--drop-cold-experts", "0,0.5", "--n-expert-used", "4,3"); !slices.Equal(got, []string{"off", "off", "off"}) {
		t.Errorf("thresholds: %v", got)
	}
	if got := modes("--cache-mb", "4", "--drop-cold-experts", "0,0.5", "--n-expert-used", "4", "--prefetch", "next-layer"); !slices.Equal(got, []string{"next-layer", "next-layer"}) {
		t.Errorf("thresholds, as told: %v", got)
	}
	short := shortText(t)
	for _, fracs := range []string{"0", "0,1"} {
		doc := decode[struct{ Rows []SessionJSON }](t, call(t, "eval", "-m", file, short, "--chunk", "64", "--json", "--cache-mb", "4", "--drop-cold-experts", fracs, "--mode", "decode"))
		for i, row := range doc.Rows {
			if ahead := row.Prefetch != nil; ahead != (fracs == "0") {
				t.Errorf("eval with thresholds %s, row %d: reads ahead: %t", fracs, i, ahead)
			}
		}
	}
}

// TestReplayOnDemand: without what a run read ahead, the replays of its trace are those of a run that read nothing ahead.
func TestReplayOnDemand(t *testing.T) {
	file, dir := skewedFile(t), t.TempDir()
	run := []string{"run", "-m", file, "-p", "In the beginning there was", "-n", "40", "--ignore-eos", "--temp", "1", "--seed", "3", "--cache-mb", "4"}
	ahead, plain, dropped := filepath.Join(dir, "ahead.csv"), filepath.Join(dir, "plain.csv"), filepath.Join(dir, "dropped.csv")
	call(t, append(slices.Clone(run), "--route-trace", ahead)...).want(t, 0, "read ahead: next-layer")
	call(t, append(slices.Clone(run), "--route-trace", plain, "--prefetch", "off")...).want(t, 0)
	call(t, append(slices.Clone(run), "--route-trace", dropped, "--drop-cold-experts", "0.5")...).want(t, 0, "read ahead: off (with dropping")

	type drops struct{ Drop []replay.DropReport }
	type caches struct{ Cache []replay.CacheReport }
	replayed := func(args ...string) result {
		r := call(t, append([]string{"replay"}, args...)...)
		r.want(t, 0)
		return r
	}
	a, b := decode[drops](t, replayed(ahead, "--prefetch", "off", "--json")).Drop[0], decode[drops](t, replayed(plain, "--json")).Drop[0]
	if !reflect.DeepEqual(a.Dynamic[0].Rows, b.Dynamic[0].Rows) || len(b.Dynamic[0].Rows) != 5 || b.Dynamic[0].Rows[2].Decode.Dropped == 0 {
		t.Errorf("of the run that read ahead:\n%+v\nof the one that did not:\n%+v", a.Dynamic[0].Rows, b.Dynamic[0].Rows)
	}
	if d := decode[drops](t, replayed(ahead, "--json")).Drop[0].Dynamic[0]; reflect.DeepEqual(d.Rows, b.Dynamic[0].Rows) || d.Reproduction == nil || d.Prefetch != "next-layer" {
		t.Errorf("as the run did: %+v", d)
	}
	live := []string{"--cache", "--live", "--budgets", "3,4,5", "--json"}
	c, d := decode[caches](t, replayed(append(live, ahead, "--prefetch", "off")...)).Cache[0], decode[caches](t, replayed(append(live, plain)...)).Cache[0]
	if !reflect.DeepEqual(c.Cells, d.Cells) || c.Reproduction != nil || d.Reproduction == nil || c.NoPrefetch != "next-layer" {
		t.Errorf("of the run that read ahead:\n%+v\nof the one that did not:\n%+v", c, d)
	}

	// A decoded token asks for half of its 4 experts at most, those that are predicted with the most weight.
	most := map[string]int{}
	for line := range strings.Lines(readFile(t, ahead)) {
		if f := strings.Split(line, ","); len(f) == 12 && f[10] != "" && f[1] != "phase" {
			most[f[1]] = max(most[f[1]], len(strings.Fields(f[9])))
		}
	}
	if most["1"] != 2 || most["0"] <= 2 {
		t.Errorf("experts asked for ahead in a call, at most, by phase (1: decode): %v", most)
	}

	// Whoever adds up a trace's bytes has those that were read ahead.
	total := decode[reproduceDoc](t, call(t, append(slices.Clone(run), "--json", "--io", "buffered")...)).IO.BytesRead
	stat := decode[inspect.Totals](t, call(t, "dump", "stat", ahead, "--json"))
	demanded, early := int64(0), int64(0)
	for _, l := range stat.Trace {
		demanded, early = demanded+l.BytesRead, early+l.BytesAhead
	}
	if demanded+early != total || early == 0 {
		t.Errorf("dump stat: %d bytes on demand and %d ahead, the run read %d", demanded, early, total)
	}
	call(t, "view", ahead, "-o", filepath.Join(dir, "v.html")).want(t, 0, fmt.Sprintf("%.1f MiB were read ahead of the demand", float64(early)/(1<<20)))

	// What a run with a threshold is held against is replayed as that run did.
	x, y := decode[drops](t, replayed(ahead, "--against", dropped, "--json")).Drop[0], decode[drops](t, replayed(plain, "--against", dropped, "--json")).Drop[0]
	if x.Dynamic[0].Check == nil || !reflect.DeepEqual(x.Dynamic[0].Check, y.Dynamic[0].Check) {
		t.Errorf("against a run with dropping: %+v, want %+v", x.Dynamic[0].Check, y.Dynamic[0].Check)
	}

	for _, c := range []struct {
		args  []string
		wants []string
	}{
		{[]string{ahead}, []string{"reading ahead (next-layer)", " reproduced: ", "note: the run read ahead (next-layer)", "with --prefetch off"}},
		{[]string{ahead, "--prefetch", "off"}, []string{"nothing read ahead (the run: next-layer)", "what the recorded run read ahead (next-layer) is not what is read ahead here (nothing)"}},
		{[]string{"--cache", "--live", ahead, "--prefetch", "off", "--budgets", "4"}, []string{"nothing read ahead (the run: next-layer)", "the run read ahead (next-layer), the replay does not"}},
		{[]string{plain, "--prefetch", "off"}, []string{" reproduced: "}},
		{[]string{"--cache", "--live", plain, "--budgets", "4"}, []string{" reproduced: ", "note: nothing is read ahead here: a run that reads ahead"}},
		{[]string{"--cache", "--live", ahead, "--budgets", "4,64"}, []string{" reproduced: ", " on all experts fit, and a run reads nothing ahead there by default"}},
	} {
		out := replayed(c.args...).out
		for _, want := range c.wants {
			if !strings.Contains(out, want) {
				t.Errorf("%v: no %q in\n%s", c.args, want, out)
			}
		}
	}
	call(t, "replay", ahead, "--prefetch", "next-layer").want(t, 2, "want run or off")
	call(t, "replay", "--cache", ahead, "--prefetch", "off").want(t, 2, "no effect with --cache but with --live")
}
