package profile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"
)

// AllDevices as Options.Device adds the ops of every chip in the file together.
const AllDevices = "all"

// Options say how a file is read.
type Options struct {
	// Device keeps the ops of one DEVICE ID (and those without one). "" refuses a file with more than one, since
	// their cycle counters and gaps have nothing to do with each other; AllDevices sums over all of them.
	Device string
	// Lenient reads on where a fault would end the reading: a number that is text is 0, a missing field is empty,
	// a surplus one is ignored, sections may overlap or never end, several chips are summed and a file may be
	// empty. Each kind of fault becomes one note with its count and the first place. A quote that never closes
	// remains an error.
	Lenient bool
}

// Profile is an ops CSV in memory, without its text: 80 bytes per op. It is not changed once read.
type Profile struct {
	Name    string   // as given
	Columns []string // of the header, in order, repeats left out
	Format  Format
	Arch    string   // DEVICE ARCH, "" when the file does not say
	Devices []string // distinct values of DEVICE ID among the ops kept, in order of appearance
	Notes   []string // what a reader of the figures has to know

	names    interner
	ops      []op
	rows     int // records after the header
	sections [2]span
	trace    idSet // METAL TRACE ID of the trace section
	session  idSet
}

// op is one row, its text interned.
type op struct {
	section                          uint8 // 1+index into sectionNames, 0 outside
	code, block, layer               uint32
	fidelity, shape, inMem, outMem   uint32
	kernel, fw, gap, start, end, cor float64 // ns, ns, ns, cycles, cycles, cores
}

var sectionNames = [2]string{SectionEager, SectionTrace}

// span is what is known about a section besides its ops.
type span struct {
	times    int // how often it begins
	line     int // where it last began
	deviceOp int
	lost     map[uint32]int // device ops without any device time, by op code
	lostLine int
}

// interner numbers strings. Number 0 is "".
type interner struct {
	id   map[string]uint32
	text []string
}

func newInterner() interner { return interner{map[string]uint32{"": 0}, []string{""}} }

func (n *interner) get(b []byte) uint32 {
	if id, ok := n.id[string(b)]; ok {
		return id
	}
	return n.add(string(b))
}

func (n *interner) add(s string) uint32 {
	if id, ok := n.id[s]; ok {
		return id
	}
	id := uint32(len(n.text))
	n.id[s] = id
	n.text = append(n.text, s)
	return id
}

// idSet is a set of interned strings; rows mostly repeat the last one.
type idSet struct {
	last uint32
	any  bool
	m    map[uint32]bool
}

func (s *idSet) put(id uint32) {
	if s.any && s.last == id {
		return
	}
	if s.m == nil {
		s.m = map[uint32]bool{}
	}
	s.m[id], s.last, s.any = true, id, true
}

func (s *idSet) sorted(n *interner) []string {
	out := []string{}
	for id := range s.m {
		out = append(out, n.text[id])
	}
	slices.Sort(out) // bytes of UTF-8 order as code points do
	return out
}

// Open reads a file. Errors are *Error with the place, or those of the file system.
func Open(path string, o Options) (*Profile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	defer f.Close()
	return Read(f, path, o)
}

// Read reads an ops CSV to its end; name stands in errors and in the report. Memory grows with the number of ops and
// with the longest record, not with the text.
func Read(r io.Reader, name string, o Options) (*Profile, error) {
	l := &loader{scanner: newScanner(r), o: o, faults: map[string]*fault{},
		p: &Profile{Name: name, names: newInterner()}}
	if err := l.read(); err != nil {
		var e *Error
		if errors.As(err, &e) {
			e.File = name
			return nil, e
		}
		return nil, fmt.Errorf("profile: %s: line %d: %w", name, l.nextLine, err)
	}
	return l.p, nil
}

// loader turns records into ops.
type loader struct {
	*scanner
	o      Options
	p      *Profile
	header []string
	col    columns

	section       uint8 // open now
	block, layer  uint32
	shape         []byte
	outside, seen int // ops outside the sections; ops
	faults        map[string]*fault
	faultOrder    []string
	posts         []string // the first signposts that open no section
	nPosts        int
	chips         []chip
	lastChip      int
	archLine      int
}

// chip is one DEVICE ID.
type chip struct {
	id   string
	line int
	ops  int
}

// fault counts one kind of fault that a lenient reading passes over.
type fault struct {
	n     int
	first Error
}

// columns are the places of the columns in use, -1 for one that the file lacks.
type columns struct {
	code, typ, device, arch, fidelity, cores, kernel, fw, gap, start, end int
	dim, plainDim                                                         [4]int // W Z Y X
	inMem, outMem, trace, session                                         int
}

// last is the highest place in use.
func (c *columns) last() int {
	return slices.Max(append([]int{c.code, c.typ, c.device, c.arch, c.fidelity, c.cores, c.kernel, c.fw, c.gap, c.start, c.end,
		c.inMem, c.outMem, c.trace, c.session}, append(c.dim[:], c.plainDim[:]...)...))
}

// errorAt makes an error about field i (-1: the record) of the current record.
func (l *loader) errorAt(i int, format string, args ...any) *Error {
	e := &Error{Line: l.lineOf(max(i, 0)), Column: i + 1, Msg: fmt.Sprintf(format, args...)}
	if 0 <= i && i < len(l.header) {
		e.Name = l.header[i]
	}
	return e
}

// fault returns e, or counts it under kind and returns nil in a lenient reading.
func (l *loader) fault(kind string, e *Error) error {
	if !l.o.Lenient {
		return e
	}
	f := l.faults[kind]
	if f == nil {
		f = &fault{first: *e}
		l.faults[kind] = f
		l.faultOrder = append(l.faultOrder, kind)
	}
	f.n++
	return nil
}

func (l *loader) notef(format string, args ...any) {
	l.p.Notes = append(l.p.Notes, fmt.Sprintf(format, args...))
}

func (l *loader) read() error {
	err := l.scan()
	if err == io.EOF {
		return l.finishEmpty("empty file")
	} else if err != nil {
		return err
	}
	if err := l.readHeader(); err != nil {
		return err
	}
	for {
		if err := l.scan(); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		l.p.rows++
		if l.fields != len(l.header) {
			if err := l.ragged(); err != nil {
				return err
			}
		}
		if string(l.field(l.col.typ)) == TypeSignpost {
			err = l.signpost()
		} else {
			err = l.op()
		}
		if err != nil {
			return err
		}
	}
	return l.finish()
}

func (l *loader) ragged() error {
	if n := len(l.header); l.fields > n {
		return l.fault("records with too many fields", l.errorAt(n, "%d fields, the header has %d", l.fields, n))
	}
	return l.fault("records with too few fields", l.errorAt(l.fields, "the record ends after %d fields, the header has %d", l.fields, len(l.header)))
}

func (l *loader) readHeader() error {
	place := make(map[string]int, l.fields)
	l.header = make([]string, l.fields)
	repeated := false
	for i := range l.header {
		b := l.field(i)
		if i == 0 && bytes.HasPrefix(b, []byte("\ufeff")) {
			b = b[3:]
			l.notef("a byte order mark stands before the header")
		}
		if !utf8.Valid(b) {
			return l.errorAt(i, "column name %q is not UTF-8", b)
		}
		s := string(b)
		l.header[i] = s
		if _, ok := place[s]; ok {
			repeated = true
		} else {
			l.p.Columns = append(l.p.Columns, s)
		}
		place[s] = i // the last one of a name counts
	}
	l.p.Format = DetectFormat(l.p.Columns)
	at := func(name string) int {
		if i, ok := place[name]; ok {
			return i
		}
		return -1
	}
	c := &l.col
	*c = columns{code: at(ColOpCode), typ: at(ColOpType), device: at(ColDevice), arch: at(ColArch), fidelity: at(ColFidelity),
		cores: at(ColCores), kernel: at(ColKernelNS), fw: at(ColFWNS), gap: at(ColGapNS), start: at(ColFWStart), end: at(ColFWEnd),
		inMem: at(InputColumn(0, OperandMemory)), outMem: at(OutputColumn(OperandMemory)), trace: at(ColTraceID), session: at(ColSessionID)}
	for i, d := range [4]string{OperandW, OperandZ, OperandY, OperandX} {
		c.dim[i], c.plainDim[i] = at(InputColumn(0, d)), at(InputColumn(0, d[:1]))
	}
	if c.code < 0 {
		if c.code = at(ColOpName); c.code < 0 {
			return &Error{Line: l.line, Msg: fmt.Sprintf("neither %s nor %s among the %d columns of the header: not an ops CSV", ColOpCode, ColOpName, l.fields)}
		}
	}
	var missing []string
	for _, name := range []string{ColOpType, ColKernelNS, ColFWNS, ColGapNS, ColFWStart, ColFWEnd, ColCores} {
		if at(name) < 0 {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		l.notef("the file has no column %s: taken as empty", strings.Join(missing, ", "))
	}
	if repeated {
		l.notef("column names stand more than once in the header: the last column of a name counts")
	}
	l.need = c.last() + 1
	return nil
}

// signpost follows the sections, blocks and layers.
func (l *loader) signpost() error {
	b := l.field(l.col.code)
	if !utf8.Valid(b) {
		return l.errorAt(l.col.code, "signpost %q is not UTF-8", b)
	}
	switch code := string(b); {
	case code == SectionEager || code == SectionTrace:
		if l.section != 0 {
			open := sectionNames[l.section-1]
			if err := l.fault("sections that begin inside another", l.errorAt(l.col.code, "section %s begins, but section %s of line %d has not ended", code, open, l.p.sections[l.section-1].line)); err != nil {
				return err
			}
		}
		l.section = 1
		if code == SectionTrace {
			l.section = 2
		}
		sp := &l.p.sections[l.section-1]
		sp.times++
		sp.line = l.line
		l.block, l.layer = 0, 0
	case code == SectionEager+SectionEnd || code == SectionTrace+SectionEnd:
		name := strings.TrimSuffix(code, SectionEnd)
		if l.section == 0 || sectionNames[l.section-1] != name {
			state := "no section is open"
			if l.section != 0 {
				state = fmt.Sprintf("the open one is %s of line %d", sectionNames[l.section-1], l.p.sections[l.section-1].line)
			}
			if err := l.fault("section ends without a beginning", l.errorAt(l.col.code, "section %s ends, but %s", name, state)); err != nil {
				return err
			}
		}
		l.section = 0
	case strings.HasPrefix(code, BlockPrefix):
		l.block, l.layer = l.p.names.add(code[len(BlockPrefix):]), 0
	case strings.HasPrefix(code, LayerPrefix):
		l.layer = l.p.names.add(code[len(LayerPrefix):])
	default:
		if l.nPosts++; len(l.posts) < 5 {
			l.posts = append(l.posts, code)
		}
	}
	return nil
}

// op keeps one row.
func (l *loader) op() error {
	l.seen++
	keep, err := l.chip()
	if err != nil || !keep {
		return err
	}
	c := &l.col
	o := op{section: l.section, block: l.block, layer: l.layer}
	for _, n := range [...]struct {
		to *float64
		i  int
	}{{&o.cor, c.cores}, {&o.start, c.start}, {&o.end, c.end}, {&o.gap, c.gap}, {&o.fw, c.fw}, {&o.kernel, c.kernel}} {
		v, ok := parseNumber(l.field(n.i))
		if !ok {
			if err := l.fault("cells that are text where a number belongs", l.errorAt(n.i, "%.40q is not a number", l.field(n.i))); err != nil {
				return err
			}
		}
		*n.to = v
	}
	for _, s := range [...]struct {
		to  *uint32
		i   int
		cut bool
	}{{&o.code, c.code, false}, {&o.fidelity, c.fidelity, true}, {&o.inMem, c.inMem, true}, {&o.outMem, c.outMem, true}} {
		if *s.to, err = l.text(s.i, s.cut); err != nil {
			return err
		}
	}
	l.shape = l.shape[:0]
	for i := range 4 {
		b := l.field(c.dim[i])
		if len(b) == 0 {
			b = l.field(c.plainDim[i])
		}
		if i > 0 {
			l.shape = append(l.shape, 'x')
		}
		l.shape = append(l.shape, logical(b)...)
	}
	o.shape = l.p.names.get(l.shape)
	l.p.ops = append(l.p.ops, o)
	if l.section == 0 {
		l.outside++
		return nil
	}
	if l.section == 2 {
		id, err := l.text(c.trace, true)
		if err != nil {
			return err
		}
		l.p.trace.put(id)
		if id, err = l.text(c.session, true); err != nil {
			return err
		}
		l.p.session.put(id)
	}
	l.losses(&o)
	return nil
}

// losses counts device ops of a section for which the profiler delivered no device time.
func (l *loader) losses(o *op) {
	sp := &l.p.sections[l.section-1]
	if string(l.field(l.col.typ)) != TypeDeviceOp {
		return
	}
	sp.deviceOp++
	if len(trim(l.field(l.col.kernel))) > 0 || len(trim(l.field(l.col.fw))) > 0 {
		return
	}
	if sp.lost == nil {
		sp.lost, sp.lostLine = map[uint32]int{}, l.line
	}
	sp.lost[o.code]++
}

// text interns a field.
func (l *loader) text(i int, cut bool) (uint32, error) {
	b := l.field(i)
	if cut {
		b = trim(b)
	}
	if len(b) == 0 {
		return 0, nil
	}
	if id, ok := l.p.names.id[string(b)]; ok {
		return id, nil
	}
	if !utf8.Valid(b) {
		return 0, l.errorAt(i, "%.40q is not UTF-8", b)
	}
	return l.p.names.add(string(b)), nil
}

// chip notes the row's device and says whether the row is wanted.
func (l *loader) chip() (bool, error) {
	if b := trim(l.field(l.col.device)); len(b) > 0 {
		if l.lastChip >= len(l.chips) || l.chips[l.lastChip].id != string(b) {
			l.lastChip = slices.IndexFunc(l.chips, func(c chip) bool { return c.id == string(b) })
			if l.lastChip < 0 {
				if !utf8.Valid(b) {
					return false, l.errorAt(l.col.device, "%.40q is not UTF-8", b)
				}
				if len(l.chips) == maxChips {
					return false, l.errorAt(l.col.device, "more than %d devices", maxChips)
				}
				l.lastChip = len(l.chips)
				l.chips = append(l.chips, chip{string(b), l.line, 0})
			}
		}
		c := &l.chips[l.lastChip]
		c.ops++
		if l.o.Device != "" && l.o.Device != AllDevices && l.o.Device != c.id {
			return false, nil
		}
	}
	arch := trim(l.field(l.col.arch))
	switch {
	case len(arch) == 0 || string(arch) == l.p.Arch:
	case l.p.Arch == "":
		if !utf8.Valid(arch) {
			return false, l.errorAt(l.col.arch, "%.40q is not UTF-8", arch)
		}
		l.p.Arch, l.archLine = string(arch), l.lineOf(l.col.arch)
	default:
		return true, l.fault("ops of another architecture", l.errorAt(l.col.arch, "%.40q, but %q on line %d: one report has one architecture", arch, l.p.Arch, l.archLine))
	}
	return true, nil
}

// maxChips bounds what a column of arbitrary text can make of the device list.
const maxChips = 4096
