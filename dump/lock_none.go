//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package dump

import (
	"errors"
	"os"
)

// lockFile reports that this platform has no flock.
func lockFile(*os.File) (held bool, err error) {
	return false, errors.New("no advisory locks on this platform")
}
