//go:build cuda

package image

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// When the compiler finds no files here: make CUDA=1 makes them, and eval "$(cuda/env.sh)" a stand-in.
//
//go:embed kernels
var files embed.FS

// Modules returns the device code, a fatbin each.
func Modules() ([][]byte, error) {
	names, err := fs.Glob(files, "kernels/*.fatbin")
	if err != nil || len(names) == 0 {
		return nil, fmt.Errorf("cuda: this binary was built without device code (%d fatbins, %v)", len(names), err)
	}
	var out [][]byte
	for _, name := range names {
		b, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("cuda: device code %s: %w", path.Base(name), err)
		}
		out = append(out, b)
	}
	return out, nil
}

// Built says what the device code runs on, such as "sm_80 sm_90 compute_90 (CUDA 11.8)".
func Built() string {
	b, err := files.ReadFile("kernels/about.txt")
	if err != nil {
		return "built for nobody knows what"
	}
	return strings.TrimSpace(string(b))
}

// Toolkit returns the CUDA version of the compiler as the driver counts, 11080 for 11.8; 0 for a stand-in.
func Toolkit() int {
	_, v, _ := strings.Cut(Built(), "(CUDA ")
	v, _, _ = strings.Cut(v, ")")
	major, minor, ok := strings.Cut(v, ".")
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	if !ok || err1 != nil || err2 != nil {
		return 0
	}
	return a*1000 + b*10
}
