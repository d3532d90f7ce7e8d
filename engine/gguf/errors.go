package gguf

import (
	"errors"
	"fmt"
)

// ErrFormat is what every error about a file's content matches with errors.Is: not a GGUF file, a version or byte order that
// is not read here, a corrupt header, shards that do not fit together, a key that is missing or has another type. Errors of
// the operating system (no such file, permission) do not match it.
var ErrFormat = errors.New("gguf: malformed file")

// FormatError is the type of all errors that match ErrFormat.
type FormatError struct {
	File string // as given to Open or Parse
	Pos  int64  // byte position in File of what is wrong, -1 when the fault has no single place
	Msg  string // what, got and wanted
}

func (e *FormatError) Error() string {
	if e.Pos < 0 {
		return fmt.Sprintf("gguf: %s: %s", e.File, e.Msg)
	}
	return fmt.Sprintf("gguf: %s: at %#x: %s", e.File, e.Pos, e.Msg)
}

// Unwrap makes errors.Is(err, ErrFormat) hold.
func (e *FormatError) Unwrap() error { return ErrFormat }

func formatErr(file string, pos int64, format string, args ...any) error {
	return &FormatError{File: file, Pos: pos, Msg: fmt.Sprintf(format, args...)}
}
