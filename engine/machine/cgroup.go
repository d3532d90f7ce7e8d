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
	mount2, mount1 := cgroupMounts(root, controller)
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		switch {
		case f[0] == "0" && f[1] == "":
			v2 = mount2.ancestors(root, f[2])
		case hasController(f[1], controller):
			v1 = mount1.ancestors(root, f[2])
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

// cgroupMount is where a hierarchy can be seen, and which of its groups stands there: in a container
// often not the root group, while /proc/self/cgroup has the path from the root.
type cgroupMount struct{ dir, group string }

// cgroupMounts finds the hierarchies in the mount table; what it does not have is where distributions
// put it. Of several mounts of one hierarchy the one with the topmost group shows the most ancestors.
func cgroupMounts(root, controller string) (v2, v1 cgroupMount) {
	data, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err == nil {
		for line := range strings.Lines(string(data)) {
			// number, parent, device, group, directory, options, tags - type, source, options of the type
			head, tail, ok := strings.Cut(line, " - ")
			f, g := strings.Fields(head), strings.Fields(tail)
			if !ok || len(f) < 5 || len(g) < 3 {
				continue
			}
			m := cgroupMount{dir: unescape(f[4]), group: unescape(f[3])}
			switch {
			case g[0] == "cgroup2" && m.above(v2):
				v2 = m
			case g[0] == "cgroup" && hasController(g[2], controller) && m.above(v1):
				v1 = m
			}
		}
	}
	if v2.dir == "" {
		v2 = cgroupMount{"/sys/fs/cgroup", "/"}
	}
	if v1.dir == "" {
		v1 = cgroupMount{"/sys/fs/cgroup/" + controller, "/"}
	}
	return v2, v1
}

func (m cgroupMount) above(o cgroupMount) bool {
	return o.dir == "" || len(path.Clean(m.group)) < len(path.Clean(o.group))
}

// unescape undoes the mount table's octal escapes of blanks and backslashes.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// ancestors lists the directory of the group, its parent's and so on up to the mount's own. A group
// that is not below the mounted one (its name is another name space's) cannot be told from here:
// then only what exists of its path counts, and in the end the mount itself.
func (m cgroupMount) ancestors(root, group string) []string {
	g := path.Clean("/" + group)
	if base := path.Clean("/" + m.group); base != "/" {
		switch rest, ok := strings.CutPrefix(g, base); {
		case ok && rest == "":
			g = "/"
		case ok && rest[0] == '/':
			g = rest
		}
	}
	var out []string
	for ; ; g = path.Dir(g) {
		out = append(out, filepath.Join(root, filepath.FromSlash(m.dir), filepath.FromSlash(g)))
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
