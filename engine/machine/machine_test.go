package machine

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// tree writes files below a temporary root.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestQuota(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  float64
	}{
		{"nothing", nil, math.Inf(1)},
		{"v2 own", map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5},
		{"v2 ancestor is tighter", map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 0.5},
		{"v2 root of a container", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4},
		{"v1", map[string]string{"proc/self/cgroup": "5:cpu,cpuacct:/x\n", "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "250000\n", "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n"}, 2.5},
		{"v1 without", map[string]string{"proc/self/cgroup": "5:cpu:/x\n", "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n"}, math.Inf(1)},
		{"nonsense", map[string]string{"proc/self/cgroup": "0::/a\nrubbish\n", "sys/fs/cgroup/a/cpu.max": "many few\n"}, math.Inf(1)},
	} {
		if got := quota(tree(t, c.files)); got != c.want {
			t.Errorf("%s: quota %g, want %g", c.name, got, c.want)
		}
	}
}

func TestThreads(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		affinity int
		quota    float64
		want     int
	}{{8, inf, 8}, {8, 4, 4}, {8, 3.9, 3}, {8, 0.5, 1}, {2, 16, 2}, {1, inf, 1}} {
		if got := (CPUs{c.affinity, c.quota}).Threads(); got != c.want {
			t.Errorf("affinity %d quota %g: %d threads, want %d", c.affinity, c.quota, got, c.want)
		}
	}
}

func TestMemoryAvailable(t *testing.T) {
	const mem = "MemTotal:       100 kB\nMemAvailable:    2048 kB\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int64
		ok    bool
	}{
		{"nothing known", nil, math.MaxInt64, false},
		{"meminfo", map[string]string{"proc/meminfo": mem}, 2 << 20, true},
		{"v2 limit, file pages free", map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "1000000\n", "sys/fs/cgroup/a/memory.current": "900000\n",
			"sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 300000\nactive_file 100000\n"}, 500000, true},
		{"v2 ancestor", map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "1000\n", "sys/fs/cgroup/a/memory.current": "5000\n"}, 0, true},
		{"v1", map[string]string{"proc/self/cgroup": "3:memory:/m\n",
			"sys/fs/cgroup/memory/m/memory.limit_in_bytes": "4096\n", "sys/fs/cgroup/memory/m/memory.usage_in_bytes": "96\n"}, 4000, true},
		{"v1 none", map[string]string{"proc/meminfo": mem, "proc/self/cgroup": "3:memory:/m\n",
			"sys/fs/cgroup/memory/m/memory.limit_in_bytes": "9223372036854771712\n"}, 2 << 20, true},
	} {
		got, ok := MemoryAvailable(tree(t, c.files))
		if got != c.want || ok != c.ok {
			t.Errorf("%s: %d %v, want %d %v", c.name, got, ok, c.want, c.ok)
		}
	}
}
