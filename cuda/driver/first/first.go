//go:build cuda

package first

// #include "first.h"
import "C"

func init() { C.sluice_first() }
