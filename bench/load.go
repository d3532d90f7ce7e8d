package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"sluice/engine/machine"
)

// Load is how busy the machine is, as of one moment. Where the system does not say, it is zero.
type Load struct {
	Average      float64 // of runnable tasks over the last minute
	Steal, Total uint64  // processor time: taken by the hypervisor, and all of it; in ticks since boot
}

// Bounds from which figures are not to be trusted.
const (
	busyLoad  = 0.25 // load average per processor before the start
	busySteal = 0.01 // share of processor time that the hypervisor took
)

// ReadLoad reads loadavg and stat in proc below root ("/" outside tests).
func ReadLoad(root string) (l Load) {
	if b, err := os.ReadFile(filepath.Join(root, "proc/loadavg")); err == nil {
		first, _, _ := strings.Cut(string(b), " ")
		l.Average, _ = strconv.ParseFloat(first, 64)
	}
	b, err := os.ReadFile(filepath.Join(root, "proc/stat"))
	if err != nil {
		return l
	}
	line, _, _ := strings.Cut(string(b), "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return l
	}
	for i, s := range f[1:9] { // user nice system idle iowait irq softirq steal; guest time is in user already
		v, _ := strconv.ParseUint(s, 10, 64)
		l.Total += v
		if i == 7 {
			l.Steal = v
		}
	}
	return l
}

// LoadWarnings says what speaks against figures that were measured between the two moments with that many threads.
func LoadWarnings(before, after Load, cpus machine.CPUs, threads int) (out []string) {
	if before.Average > busyLoad*float64(cpus.Affinity) {
		out = append(out, fmt.Sprintf("the machine was busy: load average %.2f before the start, on %d processors", before.Average, cpus.Affinity))
	}
	if after.Total > before.Total && after.Steal > before.Steal {
		if share := float64(after.Steal-before.Steal) / float64(after.Total-before.Total); share > busySteal {
			out = append(out, fmt.Sprintf("the hypervisor took %.1f %% of the processor time (steal)", 100*share))
		}
	}
	switch {
	case cpus.Quota < float64(threads):
		out = append(out, fmt.Sprintf("%d threads on a cgroup quota of %.2f processors: the kernel stops them in mid-step", threads, cpus.Quota))
	case threads > cpus.Affinity:
		out = append(out, fmt.Sprintf("%d threads on %d processors", threads, cpus.Affinity))
	}
	return out
}

// CPUModel is the processor's name below root, or the architecture where the system does not tell.
func CPUModel(root string) string {
	b, _ := os.ReadFile(filepath.Join(root, "proc/cpuinfo"))
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
