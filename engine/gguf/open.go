package gguf

import (
	"fmt"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Shard is one file of a model; a model that is not split has one.
type Shard struct {
	Path string   // "" in memory
	Data []byte   // the whole file, read-only; valid until the File is closed
	File *os.File // open for reading; nil in memory; closed with the File

	modified time.Time // when it was opened
}

// File is an open model: the metadata of the first shard and the tensors of all. All methods but Close may be called from
// several goroutines at once. What they return is a view where the method says so, otherwise the caller's own.
type File struct {
	name    string
	version uint32
	align   uint64
	kvs     []keyValue
	index   map[string]int
	tensors []*Tensor
	byName  map[string]*Tensor
	shards  []Shard
	closed  bool
}

// Open maps and reads the model at path. If the file is a shard of a set, whichever, the whole set is opened: its files must
// stand in the same folder under the names PREFIX-00001-of-00003.gguf and so on, and must agree with each other in number,
// count and total of tensors. Errors about content match ErrFormat. The caller must Close the File.
func Open(path string) (*File, error) {
	set := &shardSet{}
	f, err := set.guard(func() (*File, error) { return set.open(path) })
	if err != nil {
		set.close()
		return nil, err
	}
	return f, nil
}

// Parse reads a model from memory. name stands for the file in messages. data is kept, not copied, and must not change while
// the File is in use. A file that is a shard of several is refused, because there is no place to look for the others.
func Parse(name string, data []byte) (*File, error) {
	h, err := readHeader(name, data)
	if err != nil {
		return nil, err
	}
	sp, err := h.split()
	if err != nil {
		return nil, err
	}
	if sp.count > 1 {
		return nil, formatErr(name, -1, "shard %d of %d, want a whole model: shards can be opened from files only", sp.no+1, sp.count)
	}
	return build([]*header{h}, []Shard{{Data: data}}, sp)
}

// build reads the tensors of all files and makes the File.
func build(hs []*header, shards []Shard, sp split) (*File, error) {
	first := hs[0]
	f := &File{
		name: first.cur.file, version: first.version, align: first.align, kvs: first.kvs, index: first.index,
		byName: map[string]*Tensor{}, shards: shards,
	}
	for i, h := range hs {
		ts, err := h.readTensors(i, f.byName)
		if err != nil {
			return nil, err
		}
		f.tensors = append(f.tensors, ts...)
	}
	if sp.hasTotal && sp.total != uint64(len(f.tensors)) {
		return nil, formatErr(f.name, -1, "key %q: %d, but %d tensors in %d files", keySplitTensors, sp.total, len(f.tensors), len(hs))
	}
	return f, nil
}

// Close unmaps and closes the files. Views into them must not be used any more; getters and Data know it and return an error
// or nil. A second Close does nothing. Close must not run at the same time as any other use.
func (f *File) Close() error {
	if f.closed {
		return nil
	}
	f.closed = true
	for _, t := range f.tensors {
		t.data = nil
	}
	var first error
	for i := range f.shards {
		if err := f.shards[i].close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Version returns the format version, 2 or 3, of the first shard.
func (f *File) Version() uint32 { return f.version }

// Name returns the path of the first shard, or the name given to Parse.
func (f *File) Name() string { return f.name }

// Alignment returns the alignment of tensor data, in bytes, in the first shard.
func (f *File) Alignment() uint64 { return f.align }

// Shards returns the model's files in the order of their numbers. The slice is the File's own.
func (f *File) Shards() []Shard { return f.shards }

// Tensors returns all tensors of all shards, by shard and within it in file order. The slice is the File's own.
func (f *File) Tensors() []*Tensor { return f.tensors }

// Tensor returns the tensor of that name. Names are unique over all shards.
func (f *File) Tensor(name string) (*Tensor, bool) {
	t, ok := f.byName[name]
	return t, ok
}

// Changed returns an error that names the first file whose time of modification or size is another than when it was opened:
// whatever was computed with it may be of either content. A file that another one was renamed over has not changed, nor has one
// in memory.
func (f *File) Changed() error {
	for _, s := range f.shards {
		if s.File == nil {
			continue
		}
		st, err := s.File.Stat()
		if err != nil {
			return fmt.Errorf("gguf: %w", err)
		}
		if !st.ModTime().Equal(s.modified) || st.Size() != int64(len(s.Data)) {
			return fmt.Errorf("gguf: %s: modified at %s, after it was opened: what was computed with it may be wrong", s.Path, st.ModTime().Format(time.DateTime))
		}
	}
	return nil
}

// Scattered tells the system that the mappings are about to be read in small pieces far apart (true), or again in any way
// (false). Around such a piece the system else reads as much as the device's readahead is, up to megabytes, which in a
// group with a memory limit counts as ours. A hint: nothing fails.
func (f *File) Scattered(on bool) {
	advice := unix.MADV_NORMAL
	if on {
		advice = unix.MADV_RANDOM
	}
	for _, s := range f.shards {
		if s.File != nil && len(s.Data) > 0 {
			_ = unix.Madvise(s.Data, advice)
		}
	}
}

// mapFile opens and maps one file.
func mapFile(path string) (s Shard, err error) {
	// Before it is opened, too: to open a pipe is to wait for its other end.
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return Shard{}, fmt.Errorf("gguf: %s: not a regular file (%s)", path, st.Mode().Type())
	}
	fh, err := os.Open(path)
	if err != nil {
		return Shard{}, fmt.Errorf("gguf: %w", err)
	}
	defer func() {
		if err != nil {
			fh.Close()
		}
	}()
	st, err := fh.Stat()
	if err != nil {
		return Shard{}, fmt.Errorf("gguf: %w", err)
	}
	if !st.Mode().IsRegular() {
		return Shard{}, fmt.Errorf("gguf: %s: not a regular file (%s)", path, st.Mode().Type())
	}
	s = Shard{Path: path, File: fh, modified: st.ModTime()}
	if st.Size() == 0 {
		return s, nil // cannot be mapped; the parser says what is missing
	}
	if st.Size() > math.MaxInt {
		return Shard{}, fmt.Errorf("gguf: %s: %d bytes do not fit this machine's address space", path, st.Size())
	}
	s.Data, err = unix.Mmap(int(fh.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return Shard{}, fmt.Errorf("gguf: %s: map %d bytes: %w", path, st.Size(), err)
	}
	return s, nil
}

func (s *Shard) close() error {
	if s.File == nil {
		s.Data = nil
		return nil
	}
	var err error
	if s.Data != nil {
		if err = unix.Munmap(s.Data); err != nil {
			err = fmt.Errorf("gguf: %s: unmap: %w", s.Path, err)
		}
	}
	if cerr := s.File.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("gguf: %w", cerr)
	}
	s.Data, s.File = nil, nil
	return err
}
