package probe

import (
	"fmt"
	"os"
)

// region is memory to read, every page of it present.
type region struct {
	mem       []byte
	huge      int64 // bytes on huge pages
	hugeKnown bool
	unmap     func()
}

func (r *region) close() { r.unmap() }

// touch writes to every word: an untouched anonymous page is one shared page of zeros, which would lie in the cache.
func touch(mem []byte) {
	for i := range mem {
		mem[i] = byte(i>>12) | 1
	}
}

// makeFile returns an open file of n bytes without a name, its pages in the page cache.
func makeFile(dir string, n int64) (*os.File, error) {
	f, err := os.CreateTemp(dir, "probe-*")
	if err != nil {
		return nil, err
	}
	os.Remove(f.Name())
	chunk := make([]byte, 1<<20)
	touch(chunk)
	for done := int64(0); done < n; {
		b := chunk[:min(int64(len(chunk)), n-done)]
		if _, err := f.Write(b); err != nil {
			f.Close()
			return nil, fmt.Errorf("write %d bytes: %w", n, err)
		}
		done += int64(len(b))
	}
	return f, nil
}
