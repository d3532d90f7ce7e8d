//go:build cuda

package main

import (
	"sluice/cuda"
	"sluice/engine"
)

// builtWithCUDA says whether this is engine-cuda.
const builtWithCUDA = true

// openDevice takes the first device. cacheBytes bounds its memory for experts; 0: what is left.
func openDevice(cacheBytes int64) (engine.Device, error) {
	return cuda.New(cuda.Options{CacheBytes: cacheBytes})
}
