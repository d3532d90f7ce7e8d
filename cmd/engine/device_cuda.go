//go:build cuda

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"sluice/cuda"
	"sluice/cuda/driver"
	"sluice/engine/model"
)

// builtWithCUDA says whether this is engine-cuda.
const builtWithCUDA = true

// openDevice takes device number ordinal. cacheBytes bounds its memory for experts; 0: what is left.
func openDevice(ordinal int, cacheBytes int64) (model.Device, error) {
	if err := startedByOther(); err != nil {
		return nil, err
	}
	return cuda.New(cuda.Options{Ordinal: ordinal, CacheBytes: cacheBytes})
}

// startedByOther is an error where another version of the program started this one.
func startedByOther() error {
	if v, ok := os.LookupEnv(startedByEnv); ok && v != version {
		return fmt.Errorf("%s is version %s, the engine that started it %s: make CUDA=1 builds both", cudaBinary, version, v)
	}
	return nil
}

// memoryHint adds to a refusal of device memory which flags need less of it. typed says that --device-cache-mb is, later
// that experts have their place already.
func memoryHint(err error, typed, later bool) error {
	var full *driver.NoMemoryError
	if !errors.As(err, &full) || full.Pinned || full.Asked == 0 {
		return err
	}
	cache := ""
	switch what := full.What; {
	case strings.HasPrefix(what, "blk.") || strings.HasSuffix(what, ".weight") || what == "output_norm":
		return fmt.Errorf("%w: all dense weights must fit, no flag makes them smaller", err)
	case what == "rearranging of weights": // of dense ones, or not
		return err
	case later, typed && (strings.Contains(what, "expert slots") || strings.HasPrefix(what, "experts of layer")):
		cache = "a smaller --device-cache-mb, "
	}
	return fmt.Errorf("%w: %sa shorter context (-c) or a smaller prompt chunk (-b) needs less", err, cache)
}
