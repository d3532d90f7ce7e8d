package probe

import (
	"fmt"
	"io"
	"unsafe"

	"golang.org/x/sys/unix"
)

// directFile reads past the page cache.
type directFile struct{ fd int }

// openDirect tries the file with a read: a file system may take the flag and refuse the reads.
func openDirect(path string) (*directFile, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_DIRECT, 0)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	f := &directFile{fd}
	mem, free, err := alignedMemory(MinBlock)
	if err == nil {
		err = f.readAt(mem, 0)
		free()
	}
	if err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *directFile) close() { unix.Close(f.fd) } // nothing was written

// readAt fills buf, which lies within the file.
func (f *directFile) readAt(buf []byte, off int64) error {
	for len(buf) > 0 {
		n, err := unix.Pread(f.fd, buf, off)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("read of %d bytes at %#x: %w", len(buf), off, err)
		case n == 0:
			return fmt.Errorf("read of %d bytes at %#x: %w", len(buf), off, io.ErrUnexpectedEOF)
		}
		buf, off = buf[n:], off+int64(n)
	}
	return nil
}

// alignedMemory is whole pages outside the Go heap, present.
func alignedMemory(n int64) (mem []byte, free func(), err error) {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return unsafe.Slice((*byte)(p), n), func() { unix.MunmapPtr(p, uintptr(n)) }, nil
}
