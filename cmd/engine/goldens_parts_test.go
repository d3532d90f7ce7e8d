package main

import (
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// What of a command's results is compared, and what is not. Left out are
//
//	times                    in every form; the line of averages that --csv and --progress also give stands without its numbers
//	memory                   resident bytes and page faults of the process, and the lines memory: of the machine
//	the machine              the line kernels: (processors, instruction sets) and the lines weights: (what a copy of the weights and
//	                         locking them come to follows from the memory and the limits there are)
//	version                  of the program, in recordings
//
// File names need no care, since a setting runs in a folder of its own. Nothing else was found to differ when the same binary
// ran all settings many times over, beside other work and alone, but this, which is left out where it is so:
//
//	read ahead               with --prefetch a read is counted when it is done: which step it is counted in (bytes_read, reads) and how
//	                         much of it came behind the last step is a race with the computation. What was asked for, used and
//	                         wasted, hits, misses and drops are not, and neither is the sum over the run.
//	direct reads             sizes and numbers of reads follow the blocks of the file system, which may not read directly at all. They
//	                         are a part of their own, compared on a file system like the one of the recording.
const masked = "*"

// parts are the results of one setting by name: "2.trace" is the route trace of its second command.
type goldenParts map[string]string

// partDirect has what holds only for a file system that reads as the one of the recording.
const partDirect = "direct"

// add takes what one command left behind in its folder.
func (p goldenParts) add(n int, s goldenStep, dir string, r result) {
	var m goldenMask
	m.ahead = s.readsAhead(r.err)
	step := func(name string) string { return strconv.Itoa(n) + "." + name }
	direct := s.mayReadDirectly()
	put := func(name, text string, mask func(m goldenMask, text string) string) {
		if !direct {
			p[step(name)] = mask(m, text)
			return
		}
		whole := mask(m, text)
		m := m
		m.direct = true
		if p[step(name)] = mask(m, text); p[step(name)] != whole {
			p[partDirect] += step(name) + "\n" + whole
		}
	}
	p[step("exit")] = strconv.Itoa(r.code)
	log, messages := splitLines(r.err, func(line string) bool { return strings.HasPrefix(line, "{") })
	put("err", messages, goldenMask.messages)
	if log != "" {
		put("progress", log, goldenMask.stepLines)
	}
	drops, _ := splitLines(r.err, func(line string) bool { return strings.HasPrefix(line, "drop:") })
	if slices.Contains(s.args, "--json") {
		put("json", r.out, goldenMask.document)
		p[step("tokens")] = goldenTokens(r.out)
		drops += strings.Join(regexp.MustCompile(`(?s)"drop": \{.*?\}`).FindAllString(r.out, -1), "\n")
	} else {
		put("out", r.out, goldenMask.messages)
	}
	if drops != "" {
		p[step("drops")] = drops
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "no file"
		}
		return string(b)
	}
	if name := s.flag("--sel-dump"); name != "" {
		p[step("dump")] = read(name)
		put("meta", read(name+".meta.json"), goldenMask.document)
	}
	if name := s.flag("--route-trace"); name != "" {
		p[step("preamble")], p[step("trace")] = splitLines(read(name), func(line string) bool { return strings.HasPrefix(line, "#") })
	}
	if name := s.flag("--csv"); name != "" {
		put("steps", read(name), goldenMask.stepTable)
	}
	if name := s.flag("--cache-save"); name != "" {
		p[step("state")] = read(name)
	}
}

// readsAhead tells whether the command does; the program says so itself.
func (s goldenStep) readsAhead(messages string) bool {
	return strings.Contains(messages, "experts: read ahead: ") && !strings.Contains(messages, "experts: read ahead: off")
}

func splitLines(text string, first func(line string) bool) (a, b string) {
	var as, bs strings.Builder
	for line := range strings.Lines(text) {
		if first(line) {
			as.WriteString(line)
		} else {
			bs.WriteString(line)
		}
	}
	return as.String(), bs.String()
}

// goldenTokens are the token ids and texts of a document, and what each turn of a conversation took from the cache.
func goldenTokens(doc string) string {
	var v struct {
		PromptIDs []int32 `json:"prompt_ids"`
		Tokens    any     `json:"tokens"` // of eval a number
		Text      string  `json:"text"`
		Stop      string  `json:"stop"`
		Turns     []struct {
			Text        string `json:"text"`
			CacheTokens int    `json:"cache_tokens"`
		} `json:"turns"`
	}
	if err := json.Unmarshal([]byte(doc), &v); err != nil {
		return doc
	}
	b, err := json.Marshal(v)
	if err != nil {
		return doc
	}
	return string(b)
}

// goldenMask takes out of a text what may differ. The zero one takes out times, memory and version.
type goldenMask struct {
	ahead  bool // reads are counted when they are done
	direct bool // what depends on direct reads too
}

var (
	reMachine   = regexp.MustCompile(`^(memory|kernels|weights):`)
	reDirect    = regexp.MustCompile(`^experts: (direct I/O off|\d+ direct reads of)`)
	reSpeed     = regexp.MustCompile(` in \S+ s \(\S+ tokens/s\)`)
	reSeconds   = regexp.MustCompile(`(waited|MiB in) \S+ s\b`)
	reAverage   = regexp.MustCompile(`^(prefill|decode): .* (ms a \w+): .*`)
	reReads     = regexp.MustCompile(`\S+ MiB read in \d+ reads`)
	reReadsEval = regexp.MustCompile(`(?m)read \S+ MiB$`)
	reLoaded    = regexp.MustCompile(`loaded, \S+ MiB`)
	reHow       = regexp.MustCompile(`(direct|buffered) reads over`)
	reField     = regexp.MustCompile(`"(\w+)":( ?)([^,\n}]+)`)
)

// messages are lines for a person.
func (m goldenMask) messages(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if reMachine.MatchString(line) || m.direct && reDirect.MatchString(line) {
			continue
		}
		line = reSpeed.ReplaceAllString(line, " in * s (* tokens/s)")
		line = reSeconds.ReplaceAllString(line, "$1 * s")
		line = reAverage.ReplaceAllString(line, "$1: * $2")
		if m.direct {
			line = reReads.ReplaceAllString(line, "* MiB read in * reads")
			line = reReadsEval.ReplaceAllString(line, "read * MiB")
			line = reLoaded.ReplaceAllString(line, "loaded, * MiB")
			line = reHow.ReplaceAllString(line, "* reads over")
		}
		b.WriteString(line)
	}
	return b.String()
}

// hides tells whether the value of a field of a document or of a step log is left out.
func (m goldenMask) hides(field, value string) bool {
	switch field {
	case "version", "tps", "seconds", "major_faults", "peak_rss_bytes", "rss_anon_bytes", "rss_file_bytes":
		return true
	case "bytes_read", "reads", "after_bytes_read":
		return m.direct
	case "mode", "io":
		return m.direct && (value == `"direct"` || value == `"buffered"` || value == "direct" || value == "buffered")
	}
	return strings.HasSuffix(field, "_us") || strings.HasSuffix(field, "_seconds")
}

func (m goldenMask) fields(text string) string {
	return reField.ReplaceAllStringFunc(text, func(s string) string {
		f := reField.FindStringSubmatch(s)
		if m.hides(f[1], f[3]) {
			return `"` + f[1] + `":` + f[2] + masked
		}
		return s
	})
}

// document is JSON of a field a line, as the program prints it.
func (m goldenMask) document(text string) string {
	if !m.ahead {
		return m.fields(text)
	}
	// The sums of the steps, not that of the run.
	head, steps, _ := strings.Cut(text, `"steps": {`)
	return m.fields(head) + goldenMask{direct: true}.fields(steps)
}

// stepLines are the steps as lines of JSON.
func (m goldenMask) stepLines(text string) string {
	m.direct = m.direct || m.ahead
	return m.fields(text)
}

// stepTable is a step log.
func (m goldenMask) stepTable(text string) string {
	facts, rows := splitLines(text, func(line string) bool { return strings.HasPrefix(line, "#") })
	facts = regexp.MustCompile(`# version=.*`).ReplaceAllString(facts, "# version=*")
	if m.direct {
		facts = regexp.MustCompile(`# io=(direct|buffered)`).ReplaceAllString(facts, "# io=*")
	}
	table, err := csv.NewReader(strings.NewReader(rows)).ReadAll()
	if err != nil {
		return text
	}
	m.direct = m.direct || m.ahead
	for i := range table {
		for j := range table[i] {
			if i > 0 && m.hides(table[0][j], table[i][j]) {
				table[i][j] = masked
			}
		}
	}
	var b strings.Builder
	b.WriteString(facts)
	w := csv.NewWriter(&b)
	if err := w.WriteAll(table); err != nil {
		return text
	}
	return b.String()
}
