package store

import (
	"io"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// system is what the storage half asks of the operating system. Tests put faults in its way.
type system interface {
	open(path string, flags int) (fd int, err error)
	close(fd int) error
	stat(fd int) (fileStat, error)
	pread(fd int, p []byte, off int64) (int, error)
	// dioAlign returns the alignment of memory and of offsets that direct I/O on the file needs, 0 for not supported;
	// known is false where the kernel does not say.
	dioAlign(fd int) (mem, off uint32, known bool)
	// mmap returns n bytes of anonymous memory, page-aligned, that remap may resize to most bytes (0: it is never
	// resized); remap may move it, its contents are not needed, and on an error it is as before. Memory behind the n bytes
	// is not taken.
	mmap(n, most int) ([]byte, error)
	remap(mem []byte, n int) ([]byte, error)
	munmap(mem []byte) error
}

type fileStat struct {
	size     int64
	dev, ino uint64
}

func (a fileStat) same(b fileStat) bool { return a.dev == b.dev && a.ino == b.ino }

// fileIdentity returns device and inode of a reader that is an open file.
func fileIdentity(r io.ReaderAt) (fileStat, bool) {
	f, ok := r.(interface{ Stat() (os.FileInfo, error) })
	if !ok {
		return fileStat{}, false
	}
	fi, err := f.Stat()
	if err != nil {
		return fileStat{}, false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fileStat{}, false
	}
	return fileStat{size: fi.Size(), dev: st.Dev, ino: st.Ino}, true
}

// linux is the operating system itself.
type linux struct{}

func (linux) open(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func (linux) close(fd int) error { return unix.Close(fd) }

func (linux) stat(fd int) (fileStat, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fileStat{}, err
	}
	return fileStat{size: st.Size, dev: st.Dev, ino: st.Ino}, nil
}

func (linux) pread(fd int, p []byte, off int64) (int, error) { return unix.Pread(fd, p, off) }

func (linux) dioAlign(fd int) (mem, off uint32, known bool) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	if err != nil || st.Mask&unix.STATX_DIOALIGN == 0 {
		return 0, 0, false
	}
	return st.Dio_mem_align, st.Dio_offset_align, true
}

// The pointer forms are used because unix.Mmap keeps a table of mappings, which allocates.

func (linux) mmap(n, most int) ([]byte, error) {
	if most == 0 {
		mem, err := mapAnonymous(n)
		if err == nil && n >= hugePage {
			adviseHuge(mem, n)
		}
		return mem, err
	}
	if most < hugePage { // too small for a large page: a boundary would only spread the slots over four times the addresses
		mem, err := mapAnonymous(most)
		if err != nil {
			return nil, err
		}
		adviseHuge(mem, n)
		return mem[:n], nil
	}
	// Room for the largest size, on a boundary of large pages.
	room := int(alignUp(int64(most), hugePage))
	mem, err := mapAnonymous(room + hugePage)
	if err != nil {
		return nil, err
	}
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(mem))) & (hugePage - 1))
	mem, ends := mem[skip:skip+room:skip+room], [][]byte{mem[:skip], mem[skip+room:]}
	for _, end := range ends {
		if len(end) > 0 {
			_ = unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(end)), uintptr(len(end))) // else it lies unused
		}
	}
	adviseHuge(mem, n)
	return mem[:n], nil
}

func mapAnonymous(n int) ([]byte, error) {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), n), nil
}

// hugePage is the size from which memory is asked for in large pages: their size on amd64 and arm64.
const hugePage = 2 << 20

// adviseHuge asks for large pages where the first n bytes of memory fill them: a forward pass streams all of this memory,
// and with small pages its speed is that of the page walks. A large page that is used in part only would take memory that
// nobody has counted, also where it was whole and a part of it was given back: so none is to reach past n. Without large
// pages all is only slower, and an error is no fault.
func adviseHuge(mem []byte, n int) {
	huge := n &^ (hugePage - 1)
	if cap(mem) == n { // never resized: neighbours may share a large page
		huge = n
	}
	if huge > 0 {
		_ = unix.Madvise(mem[:huge], unix.MADV_HUGEPAGE)
	}
	if rest := mem[huge:cap(mem)]; len(rest) > 0 {
		_ = unix.Madvise(rest, unix.MADV_NOHUGEPAGE)
	}
}

func (linux) remap(mem []byte, n int) ([]byte, error) {
	if from := n &^ (hugePage - 1); n < len(mem) {
		// With all of a large page that is no longer filled.
		if from >= len(mem)&^(hugePage-1) {
			from = int(alignUp(int64(n), int64(os.Getpagesize())))
		}
		if err := unix.Madvise(mem[from:], unix.MADV_DONTNEED); err != nil {
			return nil, err
		}
	}
	mem = mem[:n]
	adviseHuge(mem, n)
	return mem, nil
}

func (linux) munmap(mem []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(cap(mem)))
}
