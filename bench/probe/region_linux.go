package probe

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func openRegion(pages string, n int64, dir string) (*region, error) {
	if pages == PagesFile {
		return openFileRegion(n, dir)
	}
	const hugePage = 2 << 20 // a mapping that starts off one would lose its first and last huge page, at most
	mem, err := unix.Mmap(-1, 0, int(n)+hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	advice := unix.MADV_NOHUGEPAGE
	if pages == PagesHuge {
		advice = unix.MADV_HUGEPAGE
	}
	if err := unix.Madvise(mem, advice); err != nil && pages == PagesHuge {
		unix.Munmap(mem)
		return nil, fmt.Errorf("ask for huge pages: %w", err)
	} // a kernel without huge pages refuses both, and then 4k is what it gives
	start := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	skip := int(-start & (hugePage - 1))
	r := &region{mem: mem[skip : skip+int(n)], unmap: func() { unix.Munmap(mem) }}
	touch(r.mem)
	if f, err := os.Open("/proc/self/smaps"); err == nil {
		r.huge, r.hugeKnown = hugeBytes(f, uint64(start), uint64(start)+uint64(len(mem)))
		f.Close()
	}
	return r, nil
}

func openFileRegion(n int64, dir string) (*region, error) {
	f, err := makeFile(dir, n)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping keeps the file
	mem, err := unix.Mmap(int(f.Fd()), 0, int(n), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map a file of %d bytes: %w", n, err)
	}
	return &region{mem: mem, unmap: func() { unix.Munmap(mem) }}, nil
}

// hugeBytes adds up AnonHugePages of the mappings that lie in [lo, hi), from the text of /proc/self/smaps. The kernel may
// have merged the mapping with a neighbour, so what overlaps counts too, up to the range's size.
func hugeBytes(r io.Reader, lo, hi uint64) (n int64, ok bool) {
	inside := false
	s := bufio.NewScanner(r)
	for s.Scan() {
		line := s.Text()
		word, rest, _ := strings.Cut(line, " ")
		if a, b, isRange := strings.Cut(word, "-"); isRange {
			from, err1 := strconv.ParseUint(a, 16, 64)
			to, err2 := strconv.ParseUint(b, 16, 64)
			if err1 == nil && err2 == nil {
				inside = from < hi && to > lo
				continue
			}
		}
		if inside && word == "AnonHugePages:" {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err == nil {
				n += kib << 10
				ok = true
			}
		}
	}
	return min(n, int64(hi-lo)), ok
}
