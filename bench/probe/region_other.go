//go:build !linux

package probe

import "errors"

// openRegion has only plain memory of the Go heap elsewhere: which pages back it is the system's choice.
func openRegion(pages string, n int64, _ string) (*region, error) {
	if pages != Pages4K {
		return nil, errors.New("only Linux lets a process choose")
	}
	mem := make([]byte, n)
	touch(mem)
	return &region{mem: mem, unmap: func() {}}, nil
}
