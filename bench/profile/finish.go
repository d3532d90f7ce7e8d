package profile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

func (l *loader) finishEmpty(what string) error {
	if !l.o.Lenient {
		return &Error{Line: 1, Msg: what + ": no op to summarise"}
	}
	l.p.Columns = []string{}
	l.notef("%s: nothing to summarise", what)
	return nil
}

// finish checks the file as a whole and writes the notes.
func (l *loader) finish() error {
	if l.p.rows == 0 {
		return l.finishEmpty(fmt.Sprintf("a header of %d columns and no rows", len(l.header)))
	}
	if l.section != 0 {
		s := l.p.sections[l.section-1]
		e := &Error{Line: s.line, Column: l.col.code + 1, Name: l.header[l.col.code],
			Msg: fmt.Sprintf("section %s never ends", sectionNames[l.section-1])}
		if err := l.fault("sections that never end", e); err != nil {
			return err
		}
	}
	if err := l.finishChips(); err != nil {
		return err
	}
	for _, kind := range l.faultOrder {
		f := l.faults[kind]
		e := f.first
		e.File = l.p.Name
		l.notef("%s: %d, the first: %s", kind, f.n, strings.TrimPrefix(e.Error(), "profile: "))
	}
	l.noteSections()
	return nil
}

func (l *loader) finishChips() error {
	var list []string
	same := true
	for _, c := range l.chips {
		list = append(list, fmt.Sprintf("%s (%d ops)", c.id, c.ops))
		same = same && c.ops == l.chips[0].ops
		if l.o.Device == "" || l.o.Device == AllDevices || l.o.Device == c.id {
			l.p.Devices = append(l.p.Devices, c.id)
		}
	}
	if shown := 40; len(list) > shown {
		list = append(list[:shown], fmt.Sprintf("%d more", len(list)-shown))
	}
	all := strings.Join(list, ", ")
	switch {
	case l.o.Device != "" && l.o.Device != AllDevices:
		if len(l.chips) > 0 && len(l.p.Devices) == 0 {
			return &Error{Msg: fmt.Sprintf("no op of device %q; the file has %s", l.o.Device, all)}
		}
		if len(l.chips) > 1 {
			l.notef("device %s of %d: the file has %s", l.o.Device, len(l.chips), all)
		}
	case len(l.chips) > 1:
		if l.o.Device == "" {
			e := &Error{Line: l.chips[1].line, Column: l.col.device + 1, Name: ColDevice,
				Msg: fmt.Sprintf("ops of %d devices in one file: %s; choose one, or all of them summed", len(l.chips), all)}
			if err := l.fault("files of several devices", e); err != nil {
				return err
			}
		}
		l.notef("summed over %d devices: %s; gaps and spans mix their clocks", len(l.chips), all)
		if !same {
			l.notef("the devices did not run the same number of ops: compare them one by one")
		}
	}
	return nil
}

func (l *loader) noteSections() {
	eager, trace := &l.p.sections[0], &l.p.sections[1]
	if eager.times+trace.times == 0 {
		switch {
		case l.nPosts == 0:
			l.notef("no section: the file has no signpost named %s or %s; its %d ops can be summarised as a whole", SectionEager, SectionTrace, len(l.p.ops))
		default:
			l.notef("no section: none of the %d signposts (%s) is %s or %s; the file's %d ops can be summarised as a whole",
				l.nPosts, quoteList(l.posts, l.nPosts), SectionEager, SectionTrace, len(l.p.ops))
		}
		return
	}
	count := [3]int{}
	for i := range l.p.ops {
		count[l.p.ops[i].section]++
	}
	for i := range l.p.sections {
		s, name, n := &l.p.sections[i], sectionNames[i], count[i+1]
		switch {
		case s.times == 0:
			l.notef("section %s never ran: no signpost of that name", name)
		case n == 0:
			l.notef("section %s of line %d has no op: it ran, and its ops are lost", name, s.line)
		}
		if s.times > 1 {
			l.notef("section %s begins %d times: its ops are put together", name, s.times)
		}
		if lost := total(s.lost); lost > 0 {
			l.notef("section %s: %d of %d device ops have no device time and count as 0 (%s), the first on line %d: the profiler lost them",
				name, lost, s.deviceOp, l.lostNames(s.lost), s.lostLine)
		}
	}
	if l.outside > 0 {
		l.notef("%d ops lie outside the sections", l.outside)
	}
	if eager.times > 0 && trace.times > 0 {
		l.noteOrder()
	}
}

// noteOrder says where the trace leaves the eager sequence, because then it has no blocks and layers.
func (l *loader) noteOrder() {
	var a, b []uint32
	for i := range l.p.ops {
		switch o := &l.p.ops[i]; o.section {
		case 1:
			a = append(a, o.code)
		case 2:
			b = append(b, o.code)
		}
	}
	if slices.Equal(a, b) {
		return
	}
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	at := "where the shorter one ends"
	if i < min(len(a), len(b)) {
		at = fmt.Sprintf("%s against %s", l.p.names.text[a[i]], l.p.names.text[b[i]])
	}
	l.notef("eager has %d ops and trace %d; they part at op %d (%s), so the trace does not inherit blocks and layers", len(a), len(b), i, at)
}

func total(m map[uint32]int) int {
	n := 0
	for _, v := range m {
		n += v
	}
	return n
}

func (l *loader) lostNames(m map[uint32]int) string {
	type entry struct {
		name string
		n    int
	}
	var es []entry
	for id, n := range m {
		es = append(es, entry{l.p.names.text[id], n})
	}
	slices.SortFunc(es, func(a, b entry) int { return cmp.Or(b.n-a.n, strings.Compare(a.name, b.name)) })
	var s []string
	for _, e := range es[:min(len(es), 5)] {
		s = append(s, fmt.Sprintf("%d %s", e.n, e.name))
	}
	if len(es) > 5 {
		s = append(s, fmt.Sprintf("%d more op codes", len(es)-5))
	}
	return strings.Join(s, ", ")
}

func quoteList(s []string, n int) string {
	out := make([]string, len(s))
	for i := range s {
		out[i] = fmt.Sprintf("%.40q", s[i])
	}
	if n > len(s) {
		out = append(out, "...")
	}
	return strings.Join(out, ", ")
}
