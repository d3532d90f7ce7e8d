package paired

import (
	"encoding/binary"
	"fmt"
	"os/exec"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Run runs a command to its end and counts the instructions that its threads retired outside the kernel. noCount says why there
// is no count, 0, on a machine without counters or without leave to read them; the command runs all the same. err is the
// command's.
func Run(c *exec.Cmd) (instructions uint64, noCount, err error) {
	// The counter is this thread's and inherited by the process that it forks, in which it starts counting with the exec.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	attr := unix.PerfEventAttr{
		Type:   unix.PERF_TYPE_HARDWARE,
		Config: unix.PERF_COUNT_HW_INSTRUCTIONS,
		Bits:   unix.PerfBitDisabled | unix.PerfBitInherit | unix.PerfBitEnableOnExec | unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv,
	}
	attr.Size = uint32(unsafe.Sizeof(attr))
	fd, e := unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if e != nil {
		return 0, fmt.Errorf("paired: no counter of instructions: perf_event_open: %w", e), c.Run()
	}
	defer unix.Close(fd)
	err = c.Run()
	var b [8]byte
	if n, e := unix.Read(fd, b[:]); e != nil || n != len(b) {
		return 0, fmt.Errorf("paired: counter of instructions: %d bytes read, want %d: %v", n, len(b), e), err
	}
	if instructions = binary.NativeEndian.Uint64(b[:]); instructions == 0 {
		noCount = fmt.Errorf("paired: the counter of instructions stands still")
	}
	return instructions, noCount, err
}
