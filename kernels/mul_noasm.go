//go:build !amd64 || noasm

package kernels

func mulRows(c *mul) { mulRowsGeneric(c) }
