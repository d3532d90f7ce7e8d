package machine

import (
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// groups lists the directories of this process's cgroup and all its ancestors for one controller,
// innermost first, for cgroup v2 and for the v1 hierarchy of that controller.
func groups(root, controller string) (v2, v1 []string) {
	data, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil, nil
	}
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		switch {
		case f[0] == "0" && f[1] == "":
			v2 = ancestors(filepath.Join(root, "sys/fs/cgroup"), f[2])
		case hasController(f[1], controller):
			v1 = ancestors(filepath.Join(root, "sys/fs/cgroup", controller), f[2])
		}
	}
	return v2, v1
}

func hasController(list, want string) bool {
	for c := range strings.SplitSeq(list, ",") {
		if c == want {
			return true
		}
	}
	return false
}

// ancestors lists base/group, its parent and so on up to base. In a container the group's path may
// not exist below the mount; then only what exists counts.
func ancestors(base, group string) []string {
	var out []string
	for g := path.Clean("/" + group); ; g = path.Dir(g) {
		out = append(out, filepath.Join(base, filepath.FromSlash(g)))
		if g == "/" {
			return out
		}
	}
}

// number reads one integer from a file; "max", a missing file and nonsense give ok false.
func number(file string) (v int64, ok bool) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	v, err = strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return v, err == nil
}

// quota is the smallest CPU quota of the group and its ancestors, in processors; +Inf without one.
func quota(root string) float64 {
	q := math.Inf(1)
	v2, v1 := groups(root, "cpu")
	for _, dir := range v2 {
		data, err := os.ReadFile(filepath.Join(dir, "cpu.max"))
		if err != nil {
			continue
		}
		f := strings.Fields(string(data))
		if len(f) != 2 || f[0] == "max" {
			continue
		}
		limit, err1 := strconv.ParseFloat(f[0], 64)
		period, err2 := strconv.ParseFloat(f[1], 64)
		if err1 == nil && err2 == nil && limit > 0 && period > 0 {
			q = min(q, limit/period)
		}
	}
	for _, dir := range v1 {
		limit, ok1 := number(filepath.Join(dir, "cpu.cfs_quota_us"))
		period, ok2 := number(filepath.Join(dir, "cpu.cfs_period_us"))
		if ok1 && ok2 && limit > 0 && period > 0 {
			q = min(q, float64(limit)/float64(period))
		}
	}
	return q
}

// memoryLeft is the smallest distance to a memory limit of the group and its ancestors, in bytes;
// MaxInt64 without one. File pages in a group's use can be reclaimed, so they do not count as used.
func memoryLeft(root string) int64 {
	left := int64(math.MaxInt64)
	v2, v1 := groups(root, "memory")
	for _, dir := range v2 {
		left = min(left, groupLeft(dir, "memory.max", "memory.current", "inactive_file", "active_file"))
	}
	for _, dir := range v1 {
		left = min(left, groupLeft(dir, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"))
	}
	return left
}

func groupLeft(dir, limitFile, useFile string, reclaimable ...string) int64 {
	limit, ok := number(filepath.Join(dir, limitFile))
	if !ok || limit >= 1<<60 { // v1 writes a huge number for "none"
		return math.MaxInt64
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
	return max(0, limit-max(0, use))
}
