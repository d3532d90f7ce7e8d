package machine

import (
	"fmt"
	"path/filepath"
)

// AddressSpace says how much the process's limit of address space (ulimit -v) is and how much of it is in use, "" without
// a limit. A mapping that does not fit fails, whatever memory there is.
func AddressSpace(root string) string {
	limit, ok := processLimit(filepath.Join(root, "proc/self/limits"), "Max address space")
	use, known := kibibytes(filepath.Join(root, "proc/self/status"), "VmSize:")
	if !ok || !known {
		return ""
	}
	return fmt.Sprintf("limit of address space: %d MiB, %d in use", limit>>20, use>>20)
}
