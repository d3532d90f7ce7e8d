package machine

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
)

// mountLine is a line of /proc/self/mountinfo.
func mountLine(group, dir, kind, options string) string {
	return fmt.Sprintf("36 35 0:30 %s %s rw,nosuid - %s cgroup rw,%s\n", group, dir, kind, options)
}

// TestReadMemoryBounds: the tightest of everything counts, and is named.
func TestReadMemoryBounds(t *testing.T) {
	const mem = "MemTotal:       9999999 kB\nMemAvailable:    8192 kB\n"
	const mib = 1 << 20
	limit := func(n int) string { return fmt.Sprintf("%d\n", n*mib) }
	limits := func(name, soft string) string {
		return fmt.Sprintf("Limit                     Soft Limit           Hard Limit           Units     \n%-25s %-20s unlimited            bytes     \n", name, soft)
	}
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int64 // MiB
		bound string
	}{
		{"nothing but meminfo", map[string]string{"proc/meminfo": mem}, 8, "MemAvailable"},
		{"three nested groups, the middle one is tightest", map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "0::/a/b/c\n",
			"sys/fs/cgroup/a/b/c/memory.max": limit(7), "sys/fs/cgroup/a/b/memory.max": limit(5), "sys/fs/cgroup/a/memory.max": limit(6),
			"sys/fs/cgroup/a/b/memory.current": limit(2), "sys/fs/cgroup/a/memory.current": limit(2)}, 3, "memory.max of /sys/fs/cgroup/a/b: 5 MiB, 2 in use"},
		{"both versions, version 1 is tighter", map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "4:memory:/x/y\n0::/u\n",
			"sys/fs/cgroup/u/memory.max": limit(5), "sys/fs/cgroup/memory/x/memory.limit_in_bytes": limit(4)}, 4, "memory.limit_in_bytes of /sys/fs/cgroup/memory/x"},
		{"both versions, version 2 is tighter", map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "4:memory:/x/y\n0::/u\n",
			"proc/self/mountinfo":                mountLine("/", "/sys/fs/cgroup/unified", "cgroup2", "") + mountLine("/", "/sys/fs/cgroup/memory", "cgroup", "memory"),
			"sys/fs/cgroup/unified/u/memory.max": limit(3), "sys/fs/cgroup/memory/x/memory.limit_in_bytes": limit(4)}, 3, "unified/u"},
		{"memory.high", map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": limit(5), "sys/fs/cgroup/a/memory.high": limit(4)}, 4, "memory.high"},
		{"container: the mount shows a group below the root", map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "0::/docker/abc/job\n",
			"proc/self/mountinfo":           mountLine("/docker/abc", "/sys/fs/cgroup", "cgroup2", ""),
			"sys/fs/cgroup/memory.max":      limit(6),
			"sys/fs/cgroup/job/memory.max":  limit(5),
			"sys/fs/cgroup/docker/irrelevt": ""}, 5, "/sys/fs/cgroup/job"},
		{"container of version 1", map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "9:memory:/docker/abc\n",
			"proc/self/mountinfo":                        mountLine("/docker/abc", "/sys/fs/cgroup/memory", "cgroup", "memory"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": limit(6)}, 6, "/sys/fs/cgroup/memory:"},
		{"container: the path is another name space's", map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "0::/../../else\n",
			"proc/self/mountinfo":      mountLine("/docker/abc", "/sys/fs/cgroup", "cgroup2", ""),
			"sys/fs/cgroup/memory.max": limit(6)}, 6, "/sys/fs/cgroup:"},
		{"a group whose name begins like the mounted one", map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "0::/docker/abcdef\n",
			"proc/self/mountinfo":      mountLine("/docker/abc", "/sys/fs/cgroup", "cgroup2", ""),
			"sys/fs/cgroup/memory.max": limit(6), "sys/fs/cgroup/def/memory.max": limit(1)}, 6, "/sys/fs/cgroup:"},
		{"controllers mounted together elsewhere", map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "9:cpu,memory:/g\n",
			"proc/self/mountinfo":             mountLine("/", `/mnt/c\040g`, "cgroup", "cpu,memory"),
			"mnt/c g/g/memory.limit_in_bytes": limit(2)}, 2, "/mnt/c g/g"},
		{"address space", map[string]string{"proc/meminfo": mem, "proc/self/limits": limits("Max address space", "207618048"),
			"proc/self/status": "VmSize:     4096 kB\n"}, 2, "limit of address space: 198 MiB, 4 in use, 192 for steps of the heap"},
		{"no limit of address space", map[string]string{"proc/meminfo": mem, "proc/self/limits": limits("Max address space", "unlimited"),
			"proc/self/status": "VmSize:     4096 kB\n"}, 8, "MemAvailable"},
		{"data", map[string]string{"proc/meminfo": mem, "proc/self/limits": limits("Max data size", "1048576"),
			"proc/self/status": "VmData:     4096 kB\n"}, 0, "limit of data"},
		{"nonsense", map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": "rubbish - x\n - \n",
			"sys/fs/cgroup/a/memory.max": "lots\n", "proc/self/limits": "Max address space\n"}, 8, "MemAvailable"},
	} {
		got, ok := ReadMemory(tree(t, c.files))
		if !ok || got.Available != c.want*mib || !strings.Contains(got.Bound, c.bound) {
			t.Errorf("%s: %v %v (%d bytes), want %d MiB by %q", c.name, got, ok, got.Available, c.want, c.bound)
		}
	}
	if m, ok := ReadMemory(t.TempDir()); ok || m.Available != math.MaxInt64 {
		t.Errorf("nothing known: %v %v", m, ok)
	}
}

// TestQuotaOfContainer: the same walk finds processor quotas; rounding is Threads' (TestThreads).
func TestQuotaOfContainer(t *testing.T) {
	root := tree(t, map[string]string{"proc/self/cgroup": "5:cpu,cpuacct:/docker/abc/job\n",
		"proc/self/mountinfo":                        mountLine("/docker/abc", "/sys/fs/cgroup/cpu,cpuacct", "cgroup", "cpu,cpuacct"),
		"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "370000\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n"})
	if q := quota(root); q != 3.7 {
		t.Errorf("quota %g, want 3.7", q)
	}
}

func TestReadRSS(t *testing.T) {
	for _, c := range []struct {
		name, status string
		want         RSS
		ok           bool
	}{
		{"by kind", "VmHWM:\t 9000 kB\nVmRSS:\t 8000 kB\nRssAnon:\t 500 kB\nRssFile:\t 7400 kB\nRssShmem:\t 100 kB\n", RSS{600 << 10, 7400 << 10, 9000 << 10}, true},
		// A mapping of a large file must not look like memory of our own where the kinds are known.
		{"old kernel", "VmRSS:\t 8000 kB\n", RSS{Anon: 8000 << 10}, true},
		{"nothing", "Name:\tengine\n", RSS{}, false},
	} {
		got, ok := ReadRSS(tree(t, map[string]string{"proc/self/status": c.status}))
		if got != c.want || ok != c.ok {
			t.Errorf("%s: %+v %v, want %+v", c.name, got, ok, c.want)
		}
	}
	if _, ok := ReadRSS(t.TempDir()); ok {
		t.Error("no file: known")
	}
}

func TestRSSReader(t *testing.T) {
	page := int64(os.Getpagesize())
	for _, c := range []struct {
		text string
		want RSS
		ok   bool
	}{
		{"500 100 30 7 0 90 0\n", RSS{Anon: 70 * page, File: 30 * page}, true},
		{"500 10 30 7 0 90 0\n", RSS{File: 30 * page}, true}, // counters that lag behind each other
		{"500 100\n", RSS{}, false},
		{"500 x 30 \n", RSS{}, false},
		{"", RSS{}, false},
	} {
		r, err := NewRSSReader(tree(t, map[string]string{"proc/self/statm": c.text}))
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := r.Read(); got != c.want || ok != c.ok {
			t.Errorf("%q: %+v %v, want %+v", c.text, got, ok, c.want)
		}
		if n := testing.AllocsPerRun(10, func() { r.Read() }); n != 0 {
			t.Errorf("%v allocations a reading, want 0", n)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := NewRSSReader(t.TempDir()); err == nil {
		t.Error("no file: no error")
	}
	var none *RSSReader
	if _, ok := none.Read(); ok || none.Close() != nil {
		t.Error("the nil reader knows something")
	}
}

// TestOwnMemory reads this process's own counters: growing by 32 MiB must show as anonymous memory.
func TestOwnMemory(t *testing.T) {
	before, ok := ReadRSS("/")
	if !ok {
		t.Skip("the system has no /proc/self/status")
	}
	mem := make([]byte, 32<<20)
	for i := 0; i < len(mem); i += 4096 {
		mem[i] = 1
	}
	after, _ := ReadRSS("/")
	if grown := after.Anon - before.Anon; grown < 28<<20 {
		t.Errorf("anonymous memory grew by %d bytes, want about %d", grown, len(mem))
	}
	r, err := NewRSSReader("/")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, ok := r.Read(); !ok || got.Total() < int64(len(mem)) {
		t.Errorf("%+v %v", got, ok)
	}
	if mem[0] != 1 {
		t.Error("the memory is kept to the end")
	}
}
