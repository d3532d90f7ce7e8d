//go:build !cuda

package main

import (
	"errors"

	"sluice/engine/model"
)

// builtWithCUDA says whether this is engine-cuda.
const builtWithCUDA = false

func openDevice(int, int64) (model.Device, error) {
	return nil, errors.New("this program has no CUDA arm") // not reached: handOver starts the one that has
}

func memoryHint(err error, _, _ bool) error { return err }
