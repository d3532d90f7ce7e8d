package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// goldenModel is a model that settings run on.
type goldenModel struct {
	name string   // "": the one in the program; else the file's, without .gguf
	args []string // of gguf synth; nil: the built-in model as a file
	used int      // experts per token
	hard int      // of hundred settings that run it
}

func (m goldenModel) file() string { return m.name + ".gguf" }

// goldenModels are of every architecture, of every type at least once, merged and with a tensor for each expert, with and
// without a skew; sizes that fit no unit of a kernel among them. An expert is 10 to 200 KiB, so that a cache of 1 to 4 MiB
// streams.
func goldenModels() []goldenModel {
	synth := func(name, arch, typ string, used, hard int, more ...string) goldenModel {
		args := []string{"--arch", arch, "--type", typ, "--used", strconv.Itoa(used), "--layers", "3", "--seed", strconv.Itoa(len(name) + used)}
		return goldenModel{name, append(args, more...), used, hard}
	}
	wide := []string{"--embd", "256", "--heads", "4", "--kv-heads", "2", "--head-dim", "64", "--experts", "32", "--ff", "128"}
	even := []string{"--embd", "256", "--heads", "4", "--kv-heads", "4", "--head-dim", "64", "--experts", "16", "--ff", "256"}
	llama := []string{"--embd", "256", "--heads", "8", "--kv-heads", "2", "--head-dim", "32", "--experts", "8", "--ff", "256"}
	odd := []string{"--embd", "160", "--heads", "4", "--kv-heads", "1", "--head-dim", "48", "--experts", "13", "--ff", "96", "--vocab", "347", "--context", "200"}
	with := func(base []string, more ...string) []string { return append(slices.Clone(base), more...) }
	return []goldenModel{
		{"", nil, 4, 10},
		{"demo", nil, 4, 12},
		synth("q3-q8_0", "qwen3moe", "q8_0", 4, 10, with(wide, "--router-skew", "1")...),
		synth("q3-q4_k_m", "qwen3moe", "q4_k_m", 4, 8, with(even, "--router-skew", "0.5")...),
		synth("q3-odd", "qwen3moe", "q5_0", 3, 6, odd...),
		synth("q3-bf16", "qwen3moe", "bf16", 2, 3, with(wide, "--experts", "9", "--router-skew", "2")...),
		synth("q3-iq4_nl", "qwen3moe", "iq4_nl", 6, 4, wide...),
		synth("q3-one", "qwen3moe", "q6_k", 1, 2, with(even, "--layers", "1")...),
		synth("q2-q8_0", "qwen2moe", "q8_0", 4, 7, with(even, "--shared-ff", "320", "--router-skew", "1")...),
		synth("q2-q5_k_m", "qwen2moe", "q5_k_m", 2, 5, with(even, "--shared-ff", "512")...),
		synth("q2-q2_k", "qwen2moe", "q2_k", 4, 2, with(even, "--shared-ff", "256")...),
		synth("q2-f32", "qwen2moe", "f32", 3, 2, "--embd", "96", "--heads", "3", "--kv-heads", "3", "--head-dim", "32", "--experts", "11", "--ff", "80", "--shared-ff", "112"),
		synth("ol-q4_0", "olmoe", "q4_0", 8, 7, with(even, "--experts", "24", "--router-skew", "1.5")...),
		synth("ol-q3_k", "olmoe", "q3_k", 4, 3, even...),
		synth("ol-mxfp4", "olmoe", "mxfp4", 4, 4, even...),
		synth("ol-f16", "olmoe", "f16", 2, 2, "--embd", "128", "--heads", "2", "--kv-heads", "2", "--head-dim", "64", "--experts", "40", "--ff", "96"),
		synth("ll-q4_k", "llama", "q4_k", 2, 5, llama...),
		synth("lx-q4_k", "llama", "q4_k", 2, 5, with(llama, "--per-expert")...), // the same weights
		synth("lx-q5_k", "llama", "q5_k", 3, 3, with(llama, "--per-expert", "--router-skew", "1")...),
		synth("ll-q4_1", "llama", "q4_1", 2, 2, llama...),
		synth("lx-q5_1", "llama", "q5_1", 2, 2, with(llama, "--per-expert", "--experts", "31", "--layers", "2")...),
		synth("ll-iq4_xs", "llama", "iq4_xs", 2, 2, llama...),
	}
}

// goldenText is the text that eval settings score, a part of the repository's validation text.
const goldenText, goldenTextBytes = "text.txt", 260

// golden is one setting: commands that follow one another in a folder of their own, whose parent has the models and the text.
type golden struct {
	name   string
	models []goldenModel
	steps  []goldenStep
}

type goldenStep struct {
	args  []string
	stdin string
}

// flag returns the value of a flag, "" where it is not among the arguments.
func (s goldenStep) flag(name string) string {
	if i := slices.Index(s.args, name); i >= 0 && i+1 < len(s.args) {
		return s.args[i+1]
	}
	return ""
}

// mayReadDirectly tells whether figures of this command depend on whether the file system reads directly, and in which units:
// of a cache, and of experts that are copied into memory.
func (s goldenStep) mayReadDirectly() bool {
	mb := s.flag("--cache-mb")
	return s.flag("-m") != "" && s.flag("--io") != "buffered" && (mb != "" && mb != "0" || s.flag("--dense") == "anon")
}

const goldenSettings = 320

// goldenDraw draws settings. One seed gives the same list on every machine.
type goldenDraw struct {
	*rand.Rand
	models []goldenModel
}

// goldenCases is the list, in its order; the golden file names a setting by its number.
func goldenCases() []golden {
	d := &goldenDraw{rand.New(rand.NewPCG(20, 6)), goldenModels()}
	var list []golden
	for i := range goldenSettings {
		m := d.model()
		g := golden{models: []goldenModel{m}}
		// By turns, so that every tenth setting alone still has some of each kind.
		switch kind := (i + i/10) % 20; {
		case kind < 12:
			g.name, g.steps = "run", []goldenStep{d.run(m, d.chance(65))}
		case kind < 14:
			g.models = []goldenModel{d.models[d.IntN(2)]} // the others have no chat template
			g.name, g.steps = "chat", []goldenStep{d.chat(g.models[0])}
		case kind < 17:
			g.name, g.steps = "eval", []goldenStep{d.eval(m)}
		default:
			g.name, g.steps = "chain", d.chain(m)
		}
		g.name = fmt.Sprintf("%03d-%s", i, g.name)
		list = append(list, g)
	}
	return append(list, goldenRefusals(d.models)...)
}

// goldenRefusals are settings that end with a message, and runs that end early.
func goldenRefusals(models []goldenModel) []golden {
	m := models[2]
	var list []golden
	add := func(name string, steps ...[]string) {
		g := golden{name: "end-" + name, models: []goldenModel{m}}
		for _, args := range steps {
			g.steps = append(g.steps, goldenStep{args: append([]string{args[0], "-m", "../" + m.file(), "-t", "2", "--isa", "avx2"}, args[1:]...)})
		}
		list = append(list, g)
	}
	add("context", []string{"run", "-p", "It ends where the context does", "-c", "40", "-n", "-1", "--temp", "0", "--ignore-eos", "--json", "--route-trace", "route.csv"})
	add("prompt", []string{"run", "-p", "A prompt that is too long for the context", "-c", "8", "--temp", "0", "--sel-dump", "sel.bin"})
	add("small", []string{"run", "-p", "a", "--cache-mb", "1", "-n", "3"})
	add("used", []string{"run", "-p", "a", "--n-expert-used", "33", "-n", "3"})
	add("drop-of-one", []string{"run", "-p", "a", "--cache-mb", "4", "--drop-cold-experts", "0.5", "--n-expert-used", "1", "-n", "3"})
	add("drop-uncached", []string{"run", "-p", "a", "--drop-cold-experts", "0.5", "-n", "3"})
	add("idle-prefetch", []string{"run", "-p", "a", "--cache-mb", "64", "--prefetch-mb", "2", "-n", "3"})
	add("template", []string{"run", "--chat", "-n", "3", "--temp", "0"})
	add("short-text", []string{"eval", "../" + goldenText, "--chunk", "4096", "-c", "4096"})
	add("stop", []string{"run", "-p", "Until the model ends by itself", "-n", "400", "--seed", "77", "--top-k", "0", "--top-p", "1", "--json"})
	add("other-state",
		[]string{"run", "-p", "abc", "--cache-mb", "3", "--temp", "0", "-n", "4", "--cache-save", "state"},
		[]string{"run", "-p", "abc", "--cache-mb", "2", "--cache-force", "--temp", "0", "-n", "4", "--cache-load", "state", "--cache-save", "state"},
		[]string{"run", "-p", "abc", "--cache-mb", "3", "--temp", "0", "-n", "4", "--cache-load", "../" + goldenText})
	return list
}

func (d *goldenDraw) chance(percent int) bool { return d.IntN(100) < percent }

func draw[T any](d *goldenDraw, of ...T) T { return of[d.IntN(len(of))] }

func (d *goldenDraw) model() goldenModel {
	sum := 0
	for _, m := range d.models {
		sum += m.hard
	}
	at := d.IntN(sum)
	for _, m := range d.models {
		if at -= m.hard; at < 0 {
			return m
		}
	}
	panic("unreachable")
}

// words of the prompts: merges of the synthetic vocabulary, other scripts, digits and signs.
var goldenWords = strings.Fields(`In the beginning was a word and it is of the king ; thou art not he that said unto them 1984 x+y=3.5 e.g. (see) "so" don't
	naïve straße 日本語 Привет 🙂 interesting bread from morning 100,000 SOME CAPITALS snake_case a's ... --flag`)

func (d *goldenDraw) prompt() string {
	n := 2 + d.IntN(8)
	if d.chance(15) {
		n = 24 + d.IntN(16) // beyond a tile of 64 positions
	}
	var out []string
	for range n {
		out = append(out, goldenWords[d.IntN(len(goldenWords))])
	}
	return strings.Join(out, " ")
}

// compute are the flags of how it is computed.
func (d *goldenDraw) compute(m goldenModel) []string {
	var a []string
	if m.name != "" {
		a = append(a, "-m", "../"+m.file())
	}
	// What threads, kernels and places of weights there are must not be seen in the output: they are always set, as a default
	// follows the machine.
	a = append(a, "-t", strconv.Itoa(1+d.IntN(3)), "--isa", draw(d, "generic", "avx2", "avx512", "avx512"), "--arm", draw(d, "host", "table"))
	if d.chance(60) {
		a = append(a, "-b", draw(d, "1", "2", "3", "7", "16", "64"))
	}
	if d.chance(40) {
		a = append(a, "--kv", draw(d, "f16", "f32", "q8_0", "q8_0"))
	}
	if d.chance(20) {
		a = append(a, "--acts", draw(d, "f32", "q8"))
	}
	if d.chance(30) {
		a = append(a, "--dense", draw(d, "mmap", "warm", "anon"))
	}
	return a
}

// cached are the flags of a cache; drops is how many of hundred drop experts.
func (d *goldenDraw) cached(m goldenModel, drops int, dropFlag func() []string) []string {
	a := []string{"--cache-mb", draw(d, "1", "1", "2", "2", "3", "4"), "--cache-force"}
	if d.chance(70) {
		a = append(a, "--cache-policy", draw(d, "lru", "slru", "lrfu"))
	}
	if m.name == "" || d.chance(55) {
		a = append(a, "--io", "buffered")
	} else if d.chance(50) {
		a = append(a, "--io", "direct")
	}
	if d.chance(60) {
		a = append(a, "--io-threads", strconv.Itoa(1+d.IntN(4)))
	}
	if d.chance(65) {
		mode := draw(d, "off", "next-layer", "last-token", "auto")
		a = append(a, "--prefetch", mode)
		if (mode == "next-layer" || mode == "last-token") && d.chance(40) {
			a = append(a, "--prefetch-mb", "1")
		}
	}
	if m.used > 1 && d.chance(drops) {
		a = append(a, dropFlag()...)
		if d.chance(35) {
			a = append(a, "--drop-in-prefill")
		}
		if d.chance(35) {
			a = append(a, "--drop-no-renorm")
		}
	}
	return a
}

func (d *goldenDraw) oneThreshold() []string {
	return []string{"--drop-cold-experts", draw(d, "0.25", "0.5", "0.75", "0.9", "1")}
}

// place are the flags of where experts are.
func (d *goldenDraw) place(m goldenModel, cached bool) []string {
	switch {
	case cached:
		return d.cached(m, 55, d.oneThreshold)
	case d.chance(30):
		return []string{"--cache-mb", "0"}
	case d.chance(30) && m.name != "":
		return []string{"--io", "mmap"}
	}
	return nil
}

func (d *goldenDraw) sampling() []string {
	if d.chance(55) {
		a := []string{"--temp", "0"}
		if d.chance(15) {
			a = append(a, "--repeat-penalty", "1.3")
		}
		return a
	}
	a := []string{"--seed", strconv.Itoa(d.IntN(1e6)), "--temp", draw(d, "0.5", "0.8", "1", "1.4")}
	if d.chance(50) {
		a = append(a, "--top-k", draw(d, "0", "1", "5", "40"))
	}
	if d.chance(50) {
		a = append(a, "--top-p", draw(d, "0.3", "0.9", "1"))
	}
	if d.chance(30) {
		a = append(a, "--min-p", draw(d, "0", "0.05", "0.3"))
	}
	if d.chance(30) {
		a = append(a, "--repeat-penalty", "1.1", "--repeat-last-n", draw(d, "4", "64"))
	}
	return a
}

// records are the flags of what is written beside the text.
func (d *goldenDraw) records() []string {
	var a []string
	if d.chance(55) {
		a = append(a, "--sel-dump", "sel.bin")
	}
	if d.chance(65) {
		a = append(a, "--route-trace", "route.csv")
	}
	return a
}

func (d *goldenDraw) logs() []string {
	var a []string
	if d.chance(30) {
		a = append(a, "--csv", "steps.csv")
	}
	if d.chance(25) {
		a = append(a, "--progress")
	}
	if d.chance(60) {
		a = append(a, "--json")
	}
	return a
}

func (d *goldenDraw) fewer(m goldenModel) []string {
	if m.used < 2 || !d.chance(20) {
		return nil
	}
	return []string{"--n-expert-used", strconv.Itoa(2 + d.IntN(m.used))} // one more than the model's at most
}

func (d *goldenDraw) run(m goldenModel, cached bool) goldenStep {
	a := slices.Concat([]string{"run"}, d.compute(m), []string{"-n", strconv.Itoa(3 + d.IntN(22))}, d.sampling(), d.fewer(m), d.place(m, cached), d.records(), d.logs())
	if d.chance(80) {
		a = append(a, "--ignore-eos")
	}
	if d.chance(10) {
		a = append(a, "-c", "128")
	}
	return goldenStep{args: append(a, "-p", d.prompt())}
}

// chat is a conversation of two to four turns.
func (d *goldenDraw) chat(m goldenModel) goldenStep {
	a := slices.Concat([]string{"run", "--chat"}, d.compute(m), []string{"-n", strconv.Itoa(3 + d.IntN(14))}, d.sampling(), d.place(m, d.chance(65)), d.records(), d.logs())
	if d.chance(30) {
		a = append(a, "--system", "Be brief.")
	}
	var in strings.Builder
	for range 2 + d.IntN(3) {
		in.WriteString(d.prompt() + "\n")
	}
	return goldenStep{a, in.String()}
}

func (d *goldenDraw) eval(m goldenModel) goldenStep {
	a := append([]string{"eval", "../" + goldenText}, d.compute(m)...)
	a = append(a, "--chunk", draw(d, "32", "48", "80"))
	switch d.IntN(6) {
	case 0: // one configuration, whole chunks, recorded
		a = slices.Concat(a, d.place(m, false), d.records())
	case 1: // the same through a cache, in either mode; dropping there wants the flag
		a = slices.Concat(a, d.cached(m, 0, nil), d.records(), []string{"--mode", draw(d, "prefill", "decode")})
	case 2:
		a = slices.Concat(a, d.cached(m, 100, d.oneThreshold), d.records())
	case 3: // thresholds side by side
		a = append(a, d.cached(m, 100, func() []string { return []string{"--drop-cold-experts", draw(d, "0,0.5", "0,0.25,1", "0.75,0")} })...)
	case 4:
		if m.used > 1 {
			a = append(a, "--n-expert-used", fmt.Sprintf("%d,%d", m.used, 1+d.IntN(m.used-1)))
		}
		a = append(a, d.place(m, false)...)
	case 5: // its curves are over bytes read, so that the reads must be the same everywhere
		a = slices.Concat(a, []string{"--drop-sweep", "--cache-mb", draw(d, "1", "2"), "--cache-force", "--io", "buffered"})
		if m.used > 1 {
			a = append(a, "--drop-cold-experts", draw(d, "0.5", "0,0.75"), "--n-expert-used", strconv.Itoa(m.used-1))
		} else {
			a = append(a, "--drop-cold-experts", "0", "--n-expert-used", "1")
		}
	}
	if d.chance(70) {
		a = append(a, "--json")
	}
	return goldenStep{args: a}
}

// chain saves what the cache has come to, goes on from it and saves again, in one recording or several.
func (d *goldenDraw) chain(m goldenModel) []goldenStep {
	steps := make([]goldenStep, 2+d.IntN(2))
	compute, cache := d.compute(m), d.cached(m, 40, d.oneThreshold)
	for i := range steps {
		if i > 0 && d.chance(30) { // of another size or policy
			compute, cache = d.compute(m), d.cached(m, 40, d.oneThreshold)
		}
		a := slices.Concat([]string{"run"}, compute, []string{"-n", strconv.Itoa(3 + d.IntN(8)), "--ignore-eos"}, d.sampling(), cache, d.records(), d.logs())
		if i > 0 {
			a = append(a, "--cache-load", "state")
		}
		steps[i].args = append(a, "--cache-save", "state", "-p", d.prompt())
	}
	return steps
}
