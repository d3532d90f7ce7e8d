// Package inspect looks into recordings: which of the two formats a file is, its records in words with their byte
// offsets, and its totals per layer. It judges nothing (dump/coact and dump/replay do) and refuses nothing that the
// readers of package dump accept. Memory does not grow with the file.
package inspect

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"sluice/dump"
)

// Kind is a recording's format.
type Kind uint8

// The recordings.
const (
	Selection Kind = iota + 1 // selection dump
	Trace                     // route trace
)

func (k Kind) String() string {
	switch k {
	case Selection:
		return "selection dump"
	case Trace:
		return "route trace"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

const sniffBytes = 4096

// Detect tells which recording r is by its first bytes, and rewinds it. A selection dump has no magic: what is not
// text is taken for one, and its reader finds out. An empty file, and text that is no route trace, are errors.
func Detect(r io.ReadSeeker) (Kind, error) {
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return 0, fmt.Errorf("inspect: this input cannot be rewound (a pipe? write it to a file first): %w", err)
	}
	head, err := io.ReadAll(io.LimitReader(r, sniffBytes))
	if err != nil {
		return 0, fmt.Errorf("inspect: %w", err)
	}
	if len(head) == 0 {
		return 0, errors.New("inspect: empty file: neither selection dump nor route trace")
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return 0, fmt.Errorf("inspect: %w", err)
	}
	if !isText(head) {
		return Selection, nil
	}
	if _, err := dump.NewTraceReader(r); err != nil {
		return 0, fmt.Errorf("inspect: text, so no selection dump, and no route trace either: %w", err)
	}
	_, err = r.Seek(0, io.SeekStart)
	return Trace, err
}

// isText: no byte that a text does not have. A record of a dump begins with a layer, a top-k and an id below 256 times
// 32 whose high byte is a control character, unless the model has more than 2300 experts.
func isText(b []byte) bool {
	b = bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))
	for _, c := range b {
		if c < ' ' && c != '\n' && c != '\r' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return len(b) > 1
}

// Torn says where a recording ends inside a record.
type Torn struct {
	Records uint64 `json:"records"` // whole ones (rows of a trace) before it
	Offset  int64  `json:"offset"`  // byte at which the incomplete one begins
}

// tornOf separates the ends of a recording: clean, torn, or an error.
func tornOf(err error) (*Torn, error) {
	var torn *dump.TornError
	switch {
	case err == io.EOF:
		return nil, nil
	case errors.As(err, &torn):
		return &Torn{torn.Records, torn.Offset}, nil
	}
	return nil, err
}

func (t *Torn) String() string {
	return fmt.Sprintf("torn tail: %d whole records, torn at byte %d", t.Records, t.Offset)
}
