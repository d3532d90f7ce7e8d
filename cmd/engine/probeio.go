package main

import (
	"context"

	"sluice/bench/probe"
)

// probeIO prints how fast the device of a file gives its bytes, by block size and number of lanes.
func probeIO(ctx context.Context, io streams, path string, asJSON bool) error {
	r, err := probe.MeasureIO(ctx, probe.IOConfig{Path: path, Seed: 1})
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(io.out, r)
	}
	return r.WriteText(io.out)
}
