package dump

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// openRows opens the rows sidecar of the dump at path, which has records whole ones, creating it. The caller holds the
// dump's lock. What the sidecar says of records that the dump has not, or not any more, is cut off, and so is a torn tail;
// a file that is no rows sidecar, or a broken one, is refused unchanged.
func openRows(path string, records uint64) (s *rowsSink, notes []string, err error) {
	name := RowsPath(path)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		return nil, nil, fmt.Errorf("dump: %s: cannot open for recording: %w", name, pathCause(err))
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	st, err := f.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("dump: %s: stat: %w", name, pathCause(err))
	}
	if !st.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("dump: %s: not a regular file", name)
	}
	keep, rest, notes, err := keepRows(name, f, st.Size(), records)
	if err != nil {
		return nil, nil, err
	}
	if keep < st.Size() {
		if err := f.Truncate(keep); err != nil {
			return nil, nil, fmt.Errorf("dump: %s: cannot be cut at byte %d: %w", name, keep, pathCause(err))
		}
	}
	if keep == 0 {
		if _, err := f.Write(appendRowsHead(nil)); err != nil {
			_ = f.Truncate(0)
			return nil, nil, fmt.Errorf("dump: %s: cannot write: %w", name, pathCause(err))
		}
		keep = rowsHeadBytes
	}
	first := records - uint64(len(rest))
	s = newRowsSink(name, f, keep, first)
	for _, r := range rest { // of a block whose end was cut off
		if err := s.add([]Row{r.Row}, r.Pass); err != nil {
			return nil, nil, err
		}
	}
	if err := s.flush(); err != nil {
		return nil, nil, err
	}
	return s, notes, nil
}

// keepRows says how many bytes of a sidecar are to be kept, and which rows of a block behind them.
func keepRows(name string, f io.ReaderAt, size int64, records uint64) (keep int64, rest []PassRow, notes []string, err error) {
	if head := appendRowsHead(nil); size < rowsHeadBytes { // a kill can leave less than the head
		b := make([]byte, size)
		if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF || !bytes.HasPrefix(head, b) {
			return 0, nil, nil, fmt.Errorf("dump: %s: %d bytes that are not the rows of a selection dump", name, size)
		}
		return 0, nil, nil, nil
	}
	r, err := NewRowsReader(io.NewSectionReader(f, 0, size))
	if err != nil {
		return 0, nil, nil, fmt.Errorf("dump: %s: cannot append: %w", name, err)
	}
	for {
		torn := (*TornError)(nil)
		switch err := r.block(); {
		case err == io.EOF:
			return r.end, nil, nil, nil
		case errors.As(err, &torn):
			return torn.Offset, nil, []string{fmt.Sprintf("dump: %s: torn tail of an earlier run: cut %d bytes at byte %d", name, size-torn.Offset, torn.Offset)}, nil
		case err != nil:
			return 0, nil, nil, fmt.Errorf("dump: %s: cannot append: %w", name, err)
		}
		if r.last <= records {
			continue
		}
		for r.number < records {
			_, row, err := r.Next()
			if err != nil {
				return 0, nil, nil, fmt.Errorf("dump: %s: cannot append: %w", name, err)
			}
			rest = append(rest, row)
		}
		return r.off, rest, []string{fmt.Sprintf("dump: %s: says whose records from number %d on are, which the dump has not: cut there", name, records)}, nil
	}
}

// hasRows says whether a rows sidecar lies beside the dump at path.
func hasRows(path string) bool {
	f, err := os.Open(RowsPath(path))
	if err != nil {
		return false // there is none, or none that could be ours
	}
	var magic [len(rowsMagic)]byte
	_, err = io.ReadFull(f, magic[:])
	f.Close()
	return err == nil && string(magic[:]) == rowsMagic
}

// trimRows cuts off what the sidecar says of records that the dump has not, as a kill leaves it: a run that records no rows
// appends others under their numbers. What cannot be cut is left as it is, and said.
func trimRows(path string, records uint64) (notes []string) {
	s, notes, err := openRows(path, records)
	if err == nil {
		err = s.close()
	}
	if err != nil {
		notes = append(notes, fmt.Sprintf("%v: left as it is", err))
	}
	return notes
}

// removeRows takes away the sidecar of a dump that is gone: what an empty dump gets next are other records.
func removeRows(path string) (notes []string, err error) {
	name := RowsPath(path)
	if err := os.Remove(name); err != nil {
		return nil, fmt.Errorf("dump: %s: of a dump that is gone, and cannot be removed: %w", name, pathCause(err))
	}
	return []string{fmt.Sprintf("dump: %s: of a dump that is gone: removed", name)}, nil
}
