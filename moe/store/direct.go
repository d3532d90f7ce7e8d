package store

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// openDirect opens a second descriptor that reads past the page cache, and returns the alignment that offset, length and
// memory of a read need there. Where that is not possible the descriptor is -1, the alignment 1, and note says why.
//
// The alignment is what the kernel says (statx, STATX_DIOALIGN, Linux 6.1 and some file systems), else slotAlign, which
// suits devices with blocks of 512 and of 4096 bytes. Either is tried with a read: a file system may accept the flag and
// refuse the reads.
func openDirect(sys system, path string) (fd int, align int64, note string) {
	fd, err := sys.open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_DIRECT)
	if err != nil {
		return -1, 1, fmt.Sprintf("opening with O_DIRECT: %v", err)
	}
	align, note = directAlign(sys, fd)
	if note == "" {
		note = tryDirect(sys, fd, align)
	}
	if note != "" {
		sys.close(fd) // only read from; nothing is lost if this fails
		return -1, 1, note
	}
	return fd, align, ""
}

func directAlign(sys system, fd int) (align int64, note string) {
	mem, off, known := sys.dioAlign(fd)
	switch {
	case !known:
		return slotAlign, ""
	case mem == 0 || off == 0:
		return 0, "the file system does not support it for this file"
	}
	align = int64(max(mem, off))
	switch {
	case align&(align-1) != 0:
		return 0, fmt.Sprintf("the file system asks for an alignment of %d bytes, not a power of two", align)
	case align > slotAlign:
		return 0, fmt.Sprintf("the file system asks for an alignment of %d bytes, slots have %d", align, slotAlign)
	}
	return align, ""
}

// tryDirect reads one block at the start of the file.
func tryDirect(sys system, fd int, align int64) (note string) {
	mem, err := sys.mmap(slotAlign, 0)
	if err != nil {
		return fmt.Sprintf("memory for a test read: %v", err)
	}
	defer sys.munmap(mem)
	for {
		_, err = sys.pread(fd, mem[:align], 0)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return fmt.Sprintf("test read of %d bytes with O_DIRECT: %v", align, err)
	}
	return ""
}
