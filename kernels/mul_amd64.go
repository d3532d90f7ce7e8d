//go:build !noasm

package kernels

// mulRows picks the implementation.
func mulRows(c *mul) { mulRowsGeneric(c) }
