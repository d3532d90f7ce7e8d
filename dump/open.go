package dump

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// opened is a recording's file, locked where it is a regular one.
type opened struct {
	f       *os.File
	size    int64
	records uint64 // whole ones of a selection dump, once they are counted
	regular bool   // false for a pipe or device: no lock, no tail, no sidecar
	notes   []string
}

// openRecording opens path for appended writes, creating it, and takes the advisory lock that keeps a second writer
// out. Nothing in the file has changed when it returns.
func openRecording(path string) (*opened, error) {
	if path == "" {
		return nil, errors.New("dump: empty path")
	}
	// Read access too: the tail of an earlier recording has to be looked at. A pipe must be opened for writing only,
	// or it would count as its own reader.
	flags := os.O_RDWR | os.O_APPEND | os.O_CREATE
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		flags = os.O_WRONLY | os.O_APPEND
	}
	f, err := os.OpenFile(path, flags, 0o666)
	if err != nil {
		return nil, fmt.Errorf("dump: %s: cannot open for recording: %w", path, pathCause(err))
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("dump: %s: stat: %w", path, pathCause(err))
	}
	o := &opened{f: f, regular: st.Mode().IsRegular()}
	if !o.regular {
		return o, nil
	}
	held, err := lockFile(f)
	switch {
	case held:
		f.Close()
		return nil, fmt.Errorf("dump: %s: another writer is recording to it", path)
	case err != nil:
		o.notes = append(o.notes, fmt.Sprintf("dump: %s: cannot lock against a second writer: %v", path, err))
	}
	// Only under the lock is the length final.
	if st, err = f.Stat(); err != nil {
		f.Close()
		return nil, fmt.Errorf("dump: %s: stat: %w", path, pathCause(err))
	}
	o.size = st.Size()
	return o, nil
}

// pathCause strips the path that our own messages name already.
func pathCause(err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
