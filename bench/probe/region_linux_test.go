package probe

import (
	"strings"
	"testing"
)

func TestHugeBytes(t *testing.T) {
	const smaps = `00400000-00500000 r-xp 00000000 08:01 123 /bin/x
Size:               1024 kB
AnonHugePages:      9999 kB
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
AnonHugePages:      2048 kB
VmFlags: rd wr
7f0000400000-7f0000800000 rw-p 00000000 00:00 0
AnonHugePages:      junk kB
`
	for _, c := range []struct {
		name   string
		text   string
		lo, hi uint64
		want   int64
		ok     bool
	}{
		{"the mapping", smaps, 0x7f0000000000, 0x7f0000400000, 2 << 20, true},
		{"no more than the range", smaps, 0x7f0000000000, 0x7f0000100000, 1 << 20, true},
		{"unreadable number", smaps, 0x7f0000400000, 0x7f0000800000, 0, false},
		{"no such mapping", smaps, 0x1000, 0x2000, 0, false},
		{"empty", "", 0, 1 << 40, 0, false},
	} {
		if n, ok := hugeBytes(strings.NewReader(c.text), c.lo, c.hi); n != c.want || ok != c.ok {
			t.Errorf("%s: %d %v, want %d %v", c.name, n, ok, c.want, c.ok)
		}
	}
}
