package machine

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// CPUs is what the process may use of the processors.
type CPUs struct {
	Affinity int     // processors in the affinity mask
	Quota    float64 // cgroup quota in processors, +Inf without one
}

// Threads is the number of threads that can run at full speed: the quota rounded down, at least 1,
// and never more than the mask. A team larger than its quota is stopped in mid-step by the kernel
// and waits for itself.
func (c CPUs) Threads() int {
	n := c.Affinity
	if c.Quota < float64(n) {
		n = int(math.Floor(c.Quota))
	}
	return max(1, n)
}

// String says where the number of threads comes from.
func (c CPUs) String() string {
	if math.IsInf(c.Quota, 1) {
		return fmt.Sprintf("%d processors", c.Affinity)
	}
	return fmt.Sprintf("%d processors, quota %.4g", c.Affinity, c.Quota)
}

// ReadCPUs reads the mask and the quota below root ("/" outside tests).
func ReadCPUs(root string) CPUs {
	return CPUs{Affinity: runtime.NumCPU(), Quota: quota(root)}
}

// MemoryAvailable is how many bytes the process can take before something gives way: the least of
// MemAvailable and every cgroup limit's distance. ok is false where the system does not say.
func MemoryAvailable(root string) (bytes int64, ok bool) {
	bytes = memoryLeft(root)
	data, err := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	if err == nil {
		for line := range strings.Lines(string(data)) {
			f := strings.Fields(line)
			if len(f) >= 2 && f[0] == "MemAvailable:" {
				if kib, err := strconv.ParseInt(f[1], 10, 64); err == nil && kib >= 0 && kib < 1<<50 {
					bytes = min(bytes, kib<<10)
				}
			}
		}
	}
	return bytes, bytes != math.MaxInt64
}
