package store

import (
	"fmt"
	"io"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// input is a file that experts are read from. Reads may run concurrently.
type input struct {
	name  string
	align int64 // of the offset, the length and the memory of a read: 1 unless direct

	// A file on disk has descriptors of its own, so that closing the model's does not matter; direct is -1 when reads go
	// through the page cache. A file in memory has reader instead.
	sys              system
	buffered, direct int
	reader           io.ReaderAt

	// direct reads that had to be finished through the page cache
	finished atomic.Int64
}

// openInput opens a file of a layout, for direct reads if asked and possible. need is the end of the last extent in the
// file. note says why direct reads are not possible, "" otherwise.
func openInput(sys system, f *File, need int64, direct bool) (in *input, note string, err error) {
	in = &input{name: f.Name, align: 1, sys: sys, buffered: -1, direct: -1}
	if f.Path == "" {
		if in.reader = f.ReaderAt; f.Map != nil {
			in.reader = memory(f.Map)
		}
		if direct {
			note = "it is in memory"
		}
		return in, note, nil
	}
	if in.buffered, err = sys.open(f.Path, unix.O_RDONLY|unix.O_CLOEXEC); err != nil {
		return nil, "", fmt.Errorf("moe: open %s: %w", f.Path, err)
	}
	if err := sameFile(sys, in.buffered, f, need); err != nil {
		in.close()
		return nil, "", err
	}
	if direct {
		in.direct, in.align, note = openDirect(sys, f.Path)
	}
	return in, note, nil
}

// sameFile checks that what was opened is the file that the layout was made from, and is still long enough.
func sameFile(sys system, fd int, f *File, need int64) error {
	got, err := sys.stat(fd)
	if err != nil {
		return fmt.Errorf("moe: stat %s: %w", f.Path, err)
	}
	if want, ok := fileIdentity(f.ReaderAt); ok && !got.same(want) {
		return fmt.Errorf("moe: %s: replaced by another file since the model was opened", f.Path)
	}
	if got.size < need {
		return fmt.Errorf("moe: %s: %d bytes, experts end at %d: shortened since the model was opened", f.Path, got.size, need)
	}
	return nil
}

// read reads into dst from the offset off, a multiple of align, until want bytes have arrived; it may read more, up to
// want rounded up to align. A short read is continued, an interrupted one repeated. got counts the bytes that arrived;
// an error names the file, the offset, got and wanted.
func (in *input) read(dst []byte, off int64, want int) (got int, err error) {
	if in.reader != nil {
		got, err = in.reader.ReadAt(dst[:want], off)
		if got == want {
			return got, nil
		}
		return got, in.readError(off, got, want, err)
	}
	fd, end := in.buffered, want
	if in.direct >= 0 {
		fd, end = in.direct, int(alignUp(int64(want), in.align))
	}
	for got < want {
		n, err := in.sys.pread(fd, dst[got:end], off+int64(got))
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EINVAL && fd == in.direct:
			// The file system takes back its word on alignment: this request at least can be finished.
			n = 0
		case err != nil:
			return got, in.readError(off, got, want, err)
		case n <= 0:
			return got, in.readError(off, got, want, io.ErrUnexpectedEOF)
		}
		got += n
		if fd == in.direct && got < want && (n == 0 || int64(got)%in.align != 0) {
			// A direct read can only go on at a block boundary.
			fd, end = in.buffered, want
			in.finished.Add(1)
		}
	}
	return got, nil
}

//go:noinline
func (in *input) readError(off int64, got, want int, err error) error {
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %s at offset %d: got %d of %d bytes: %w", in.name, off, got, want, err)
}

func (in *input) close() error {
	var first error
	for _, fd := range []int{in.direct, in.buffered} {
		if fd >= 0 {
			if err := in.sys.close(fd); err != nil && first == nil {
				first = fmt.Errorf("moe: close %s: %w", in.name, err)
			}
		}
	}
	in.direct, in.buffered = -1, -1
	return first
}

// memory reads from a mapping or from memory.
type memory []byte

func (m memory) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(m)) {
		return 0, io.EOF
	}
	n := copy(p, m[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// inputs are the files of a layout that experts lie in; the others are nil.
type inputs []*input

// openInputs opens the files. notes has a sentence for each reason why files are not read directly although asked.
func openInputs(sys system, l *Layout, direct bool) (ins inputs, notes []string, err error) {
	need := make([]int64, len(l.Files))
	for _, experts := range l.Experts {
		for e := range experts {
			for p := range projections {
				if t := experts[e].at(p); t.Len > 0 {
					need[t.File] = max(need[t.File], t.Off+t.Len)
				}
			}
		}
	}
	ins = make(inputs, len(l.Files))
	used := l.usedFiles()
	files := make(map[string]int) // by reason
	var reasons []string
	var first []string
	for _, f := range used {
		in, reason, err := openInput(sys, &l.Files[f], need[f], direct)
		if err != nil {
			ins.close()
			return nil, nil, err
		}
		ins[f] = in
		if reason == "" {
			continue
		}
		if files[reason] == 0 {
			reasons, first = append(reasons, reason), append(first, in.name)
		}
		files[reason]++
	}
	for i, reason := range reasons {
		notes = append(notes, fmt.Sprintf("direct I/O off for %d of %d files, buffered reads instead: %s: %s",
			files[reason], len(used), first[i], reason))
	}
	return ins, notes, nil
}

// direct reports whether every file is read past the page cache.
func (ins inputs) direct() bool {
	for _, in := range ins {
		if in != nil && in.direct < 0 {
			return false
		}
	}
	return true
}

// notes returns a sentence for each file with direct reads that were finished through the page cache.
func (ins inputs) notes() (notes []string) {
	for _, in := range ins {
		if in == nil {
			continue
		}
		if n := in.finished.Load(); n > 0 {
			notes = append(notes, fmt.Sprintf("%d direct reads of %s stopped off a block boundary or were refused, finished buffered",
				n, in.name))
		}
	}
	return notes
}

func (ins inputs) close() (err error) {
	for _, in := range ins {
		if in != nil {
			if e := in.close(); err == nil {
				err = e
			}
		}
	}
	return err
}
