package gguf

import (
	"errors"
	"fmt"
	"runtime/debug"
	"unsafe"
)

// FaultError says that a page of a mapped file could not be read: the file has been shortened since it was mapped, or the
// device has failed. Without debug.SetPanicOnFault such a fault ends the process.
type FaultError struct {
	File   string
	Offset int64 // of the byte that was wanted
	Mapped int64 // length of the mapping
	Size   int64 // length of the file now, -1: not known
}

// Error names the file, the offset and both lengths.
func (e *FaultError) Error() string {
	why := "the device or file system failed to deliver it"
	if e.Size >= 0 && e.Size < e.Mapped {
		why = fmt.Sprintf("the file had %d bytes when it was opened and has %d now", e.Mapped, e.Size)
	}
	return fmt.Sprintf("gguf: %s: mapped byte at offset %d cannot be read: %s", e.File, e.Offset, why)
}

// Fault turns what recover returned into a *FaultError, nil when it is anything but a fault in the File's mappings. Faults
// are panics only in a goroutine that has called debug.SetPanicOnFault.
func (f *File) Fault(recovered any) error { return fault(f.shards, recovered) }

func fault(shards []Shard, recovered any) error {
	err, ok := recovered.(error)
	var at interface{ Addr() uintptr } // of the runtime's error
	if !ok || !errors.As(err, &at) {
		return nil
	}
	for _, s := range shards {
		if len(s.Data) == 0 || s.File == nil {
			continue
		}
		first := uintptr(unsafe.Pointer(unsafe.SliceData(s.Data)))
		if off := at.Addr() - first; off < uintptr(len(s.Data)) {
			e := &FaultError{File: s.Path, Offset: int64(off), Mapped: int64(len(s.Data)), Size: -1}
			if st, err := s.File.Stat(); err == nil {
				e.Size = st.Size()
			}
			return e
		}
	}
	return nil
}

// guard calls fn with faults in the shards that are open when it ends turned into errors.
func (s *shardSet) guard(fn func() (*File, error)) (f *File, err error) {
	defer func(old bool) {
		debug.SetPanicOnFault(old)
		if r := recover(); r != nil {
			if f, err = nil, fault(s.shards, r); err == nil {
				panic(r)
			}
		}
	}(debug.SetPanicOnFault(true))
	return fn()
}
