//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package dump

import (
	"errors"
	"os"
	"syscall"
)

// lockFile takes the advisory lock on f without waiting; closing f, or the end of the process however it ends, gives
// it back. held: another writer has it. An error means that this file system has no such locks.
func lockFile(f *os.File) (held bool, err error) {
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}
