package machine

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory is what the process may still take of the machine's memory.
type Memory struct {
	Available int64  // bytes, 0 or more
	Bound     string // what allows no more, for a start line
}

// String says how much, and why not more.
func (m Memory) String() string { return fmt.Sprintf("%d MiB (%s)", m.Available>>20, m.Bound) }

// heapSteps is what of a limit of address space or data cannot be given away by the byte: Go takes it for its heap 64 MiB at
// a time, and a session's scratch memory and context come after the budget was chosen.
const heapSteps = 192 << 20

// ReadMemory reads what can be taken before something gives way: the least of MemAvailable, the
// distance to the memory limit of the process's cgroup and of each of its ancestors (version 1 and 2),
// and the distance to the process's own limits of address space and data. ok is false where the system
// does not say. It is a snapshot: others take and give memory too.
func ReadMemory(root string) (m Memory, ok bool) {
	m.Available = math.MaxInt64
	take := func(left int64, bound string) {
		if left = max(0, left); left < m.Available {
			m = Memory{left, bound}
		}
	}
	if kib, ok := kibibytes(filepath.Join(root, "proc/meminfo"), "MemAvailable:"); ok {
		take(kib, "MemAvailable")
	}
	v2, v1 := groups(root, "memory")
	for _, dir := range v2 {
		// Above memory.high the kernel slows the group down until it is below again: as good as a limit.
		for _, limit := range []string{"memory.max", "memory.high"} {
			take(groupLeft(root, dir, limit, "memory.current", "inactive_file", "active_file"))
		}
	}
	for _, dir := range v1 {
		take(groupLeft(root, dir, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"))
	}
	for _, l := range []struct{ limit, use, bound string }{
		{"Max address space", "VmSize:", "limit of address space"},
		{"Max data size", "VmData:", "limit of data"},
	} {
		limit, ok1 := processLimit(filepath.Join(root, "proc/self/limits"), l.limit)
		use, ok2 := kibibytes(filepath.Join(root, "proc/self/status"), l.use)
		if ok1 && ok2 {
			take(limit-use-heapSteps, fmt.Sprintf("%s: %d MiB, %d in use, %d for steps of the heap", l.bound, limit>>20, use>>20, heapSteps>>20))
		}
	}
	return m, m.Available != math.MaxInt64
}

// MemoryAvailable is ReadMemory without the reason.
func MemoryAvailable(root string) (bytes int64, ok bool) {
	m, ok := ReadMemory(root)
	return m.Available, ok
}

// groupLeft is the distance of a group to one of its limits, MaxInt64 without one. File pages in a
// group's use can be reclaimed, so they do not count as used.
func groupLeft(root, dir, limitFile, useFile string, reclaimable ...string) (left int64, bound string) {
	limit, ok := number(filepath.Join(dir, limitFile))
	if !ok || limit >= 1<<60 { // v1 writes a huge number for "none"
		return math.MaxInt64, ""
	}
	use, _ := number(filepath.Join(dir, useFile))
	stat, _ := os.ReadFile(filepath.Join(dir, "memory.stat"))
	for line := range strings.Lines(string(stat)) {
		f := strings.Fields(line)
		if len(f) != 2 {
			continue
		}
		for _, key := range reclaimable {
			if f[0] == key {
				if v, err := strconv.ParseInt(f[1], 10, 64); err == nil {
					use -= v
				}
			}
		}
	}
	use = max(0, use)
	name, err := filepath.Rel(root, dir)
	if err != nil {
		name = dir
	}
	return limit - use, fmt.Sprintf("%s of /%s: %d MiB, %d in use", limitFile, filepath.ToSlash(name), limit>>20, use>>20)
}

// kibibytes reads a line "KEY   123 kB" of a file, in bytes.
func kibibytes(file, key string) (bytes int64, ok bool) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != key {
			continue
		}
		kib, err := strconv.ParseInt(f[1], 10, 64)
		return kib << 10, err == nil && kib >= 0 && kib < 1<<50
	}
	return 0, false
}

// processLimit reads the soft limit of a line "NAME   soft   hard   bytes" of a file; "unlimited" is none.
func processLimit(file, name string) (bytes int64, ok bool) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(data)) {
		if rest, is := strings.CutPrefix(line, name); is {
			if f := strings.Fields(rest); len(f) > 0 {
				v, err := strconv.ParseInt(f[0], 10, 64)
				return v, err == nil && v >= 0
			}
		}
	}
	return 0, false
}
