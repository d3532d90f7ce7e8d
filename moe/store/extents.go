package store

// Memory is a copy of byte ranges of files in anonymous memory outside the Go heap, in large pages
// where the system gives them. The engine holds dense weights in it; experts have NewResident.
type Memory struct {
	src   *fixedSource
	bytes int64
}

// ReadExtents reads the extents, past the page cache where the file system allows it. The files'
// mappings are not touched. Errors name file, offset, and the bytes got and wanted.
func ReadExtents(files []File, extents []Extent) (*Memory, error) {
	// To the reading side a range is an expert with one projection.
	l := &Layout{Files: files, Experts: make([][]ExpertExtents, 1)}
	for _, x := range extents {
		l.Experts[0] = append(l.Experts[0], ExpertExtents{Gate: x})
	}
	src, err := NewResident(l)
	if err != nil {
		return nil, err
	}
	return &Memory{src: src.(*fixedSource), bytes: src.Stats().ResidentBytes}, nil
}

// View returns the i-th extent's bytes, valid until Close.
func (m *Memory) View(i int) []byte { return m.src.views[0][i].Gate }

// Bytes is the memory taken, padding included.
func (m *Memory) Bytes() int64 { return m.bytes }

// Notes are the fallbacks taken, a sentence each.
func (m *Memory) Notes() []string { return m.src.Notes() }

// Close frees the memory. Views are invalid after it.
func (m *Memory) Close() error { return m.src.Close() }
