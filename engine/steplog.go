package engine

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
)

// stepColumn is one field of a step in a log: its name has the unit.
type stepColumn struct {
	name  string
	value func(p *Step) int64
}

func stepColumns() []stepColumn {
	micros := func(d time.Duration) int64 { return d.Microseconds() }
	return []stepColumn{
		{"step", func(p *Step) int64 { return int64(p.Step) }},
		{"decode", func(p *Step) int64 {
			if p.Decode {
				return 1
			}
			return 0
		}},
		{"pos", func(p *Step) int64 { return int64(p.Pos) }},
		{"tokens", func(p *Step) int64 { return int64(p.Tokens) }},
		{"wall_us", func(p *Step) int64 { return micros(p.Wall) }},
		{"io_wait_us", func(p *Step) int64 { return micros(p.IOWait) }},
		{"compute_us", func(p *Step) int64 { return micros(p.Compute) }},
		{"manage_us", func(p *Step) int64 { return micros(p.Manage) }},
		{"other_us", func(p *Step) int64 { return micros(p.Wall) - micros(p.IOWait) - micros(p.Compute) - micros(p.Manage) }},
		{"bytes_read", func(p *Step) int64 { return p.BytesRead }},
		{"reads", func(p *Step) int64 { return p.Reads }},
		{"hits", func(p *Step) int64 { return p.Hits }},
		{"misses", func(p *Step) int64 { return p.Misses }},
		{"evictions", func(p *Step) int64 { return p.Evictions }},
		{"prefetched", func(p *Step) int64 { return p.Prefetched }},
		{"prefetch_used", func(p *Step) int64 { return p.PrefetchUsed }},
		{"prefetch_wasted", func(p *Step) int64 { return p.PrefetchWasted }},
		{"routed", func(p *Step) int64 { return p.Routed }},
		{"dropped", func(p *Step) int64 { return p.Dropped }},
		{"mass", nil},
		{"mass_dropped", nil},
		{"major_faults", func(p *Step) int64 { return p.MajorFaults }},
		{"rss_anon_bytes", func(p *Step) int64 { return p.RSS.Anon }},
		{"rss_file_bytes", func(p *Step) int64 { return p.RSS.File }},
	}
}

// append writes the value. The two columns that are no whole numbers have no function.
func (c *stepColumn) append(b []byte, p *Step) []byte {
	switch {
	case c.value != nil:
		return strconv.AppendInt(b, c.value(p), 10)
	case c.name == "mass":
		return strconv.AppendFloat(b, p.Mass, 'g', -1, 64)
	}
	return strconv.AppendFloat(b, p.MassDropped, 'g', -1, 64)
}

// StepLog writes steps as they finish: each as a line of JSON to one writer, as a row of CSV to another, with the same
// names and values. Its Step is what NewTelemetry takes. Writing a step allocates nothing.
type StepLog struct {
	columns []stepColumn
	json    io.Writer
	csv     *bufio.Writer
	file    *os.File
	path    string
	line    []byte
}

// NewStepLog makes a log of neither kind.
func NewStepLog() *StepLog {
	return &StepLog{columns: stepColumns(), line: make([]byte, 0, 1024)}
}

// Several adds columns behind the others for an engine of several sequences: how many had rows in the pass, and how many of
// its tokens were drawn.
func (l *StepLog) Several() {
	l.columns = append(l.columns, stepColumn{"seqs", func(p *Step) int64 { return int64(p.Seqs) }},
		stepColumn{"drawn", func(p *Step) int64 { return int64(p.Drawn) }})
}

// JSON sends a line for each step to w, in one Write.
func (l *StepLog) JSON(w io.Writer) { l.json = w }

// CreateCSV sends a row for each step to a file, which it creates or empties: "# key=value" lines of the facts, in their
// order, then the names of the columns. Rows are written as they come, through a buffer that Close empties: a killed run
// leaves the file short.
func (l *StepLog) CreateCSV(path string, facts [][2]string) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("engine: step log: %w", err)
	}
	l.file, l.path, l.csv = f, path, bufio.NewWriterSize(f, 64<<10)
	fmt.Fprintf(l.csv, "# format=sluice-steps version=1\n")
	for _, kv := range facts {
		fmt.Fprintf(l.csv, "# %s=%s\n", kv[0], kv[1])
	}
	for i, c := range l.columns {
		if i > 0 {
			l.csv.WriteByte(',')
		}
		l.csv.WriteString(c.name)
	}
	l.csv.WriteByte('\n')
	return nil // a write error stays in the buffer and comes from the next flush
}

// Step writes one step. An error names the file.
func (l *StepLog) Step(p *Step) error {
	if l.json != nil {
		b := append(l.line[:0], '{')
		for i := range l.columns {
			c := &l.columns[i]
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, '"')
			b = append(b, c.name...)
			b = append(b, `":`...)
			b = c.append(b, p)
		}
		l.line = append(b, "}\n"...)
		if _, err := l.json.Write(l.line); err != nil {
			return fmt.Errorf("engine: step log: %w", err)
		}
	}
	if l.csv != nil {
		b := l.line[:0]
		for i := range l.columns {
			if i > 0 {
				b = append(b, ',')
			}
			b = l.columns[i].append(b, p)
		}
		l.line = append(b, '\n')
		if _, err := l.csv.Write(l.line); err != nil {
			return fmt.Errorf("engine: step log %s: %w", l.path, err)
		}
	}
	return nil
}

// Close writes what is buffered and closes the CSV file. A second Close does nothing.
func (l *StepLog) Close() error {
	if l == nil || l.file == nil {
		return nil
	}
	err := l.csv.Flush()
	if e := l.file.Close(); err == nil {
		err = e
	}
	l.file, l.csv = nil, nil
	if err != nil {
		return fmt.Errorf("engine: step log %s: %w", l.path, err)
	}
	return nil
}
