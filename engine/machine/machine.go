package machine

import (
	"fmt"
	"math"
	"runtime"
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
