package model

import (
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"sluice/moe/store"
)

// Warm reads the dense matrices' pages of the file's mapping, and with experts theirs too, and locks them in
// memory until the system allows no more. read counts the bytes of whole pages that were read, locked those
// of them that the page cache cannot lose until the model is closed.
func (m *Model) Warm(experts bool) (read, locked int64, err error) {
	defer recoverFault(m.File, debug.SetPanicOnFault(true), &err)
	mayLock := true
	for _, x := range m.warmExtents(experts) {
		data := m.Layout.Files[x.File].Map
		page := int64(os.Getpagesize())
		from, to := x.Off/page*page, min((x.Off+x.Len+page-1)/page*page, int64(len(data)))
		pages := data[from:to]
		if mayLock && unix.Mlock(pages) == nil { // which reads them
			read, locked = read+int64(len(pages)), locked+int64(len(pages))
			continue
		}
		mayLock = false
		_ = unix.Madvise(pages, unix.MADV_WILLNEED) // a hint; the pages are read below in any case
		var sum byte
		for i := 0; i < len(pages); i += int(page) {
			sum += pages[i]
		}
		warmSink(sum)
		read += int64(len(pages))
	}
	return read, locked, nil
}

// warmSink keeps the reads of pages from being optimised away.
//
//go:noinline
func warmSink(byte) {}

// warmExtents are where the matrices lie.
func (m *Model) warmExtents(experts bool) (all []store.Extent) {
	for _, s := range m.matrices() {
		all = append(all, m.extent(s))
	}
	if experts {
		for _, layer := range m.Layout.Experts {
			for _, e := range layer {
				for _, x := range []store.Extent{e.Gate, e.Up, e.Down} {
					if x.Len > 0 {
						all = append(all, x)
					}
				}
			}
		}
	}
	return all
}

// WarmNote says what Warm has come to.
func WarmNote(read, locked int64) string {
	note := fmt.Sprintf("%d MiB of the mapping read, %d MiB of them locked in memory", (read+1<<20-1)>>20, locked>>20)
	var limit unix.Rlimit
	if locked < read && unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil && limit.Cur != unix.RLIM_INFINITY {
		note += fmt.Sprintf(" (the limit of locked memory is %d MiB)", limit.Cur>>20)
	}
	return note
}
