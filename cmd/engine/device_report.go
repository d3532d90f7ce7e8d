package main

import (
	"fmt"
	"io"

	"sluice/engine/launch"
)

// deviceJSON counts experts; hits and misses are the device memory's alone.
type deviceJSON struct {
	Name        string `json:"name"`
	Resident    bool   `json:"resident"`
	BudgetBytes int64  `json:"budget_bytes"`
	Slots       int    `json:"slots"`
	Hits        int64  `json:"hits"`
	Misses      int64  `json:"misses"`
	Evictions   int64  `json:"evictions"`
	CopiedBytes int64  `json:"copied_bytes"`
	Graph       bool   `json:"graph"`
}

// deviceReport is nil for a session on this processor.
func deviceReport(s *launch.Run) *deviceJSON {
	d, on := s.DeviceStats()
	if !on {
		return nil
	}
	return &deviceJSON{s.Config().Device.Name(), d.Resident, d.BudgetBytes, d.Slots, d.Hits, d.Misses, d.Evictions, d.CopiedBytes, d.Graph}
}

// printDevice says the same in words.
func printDevice(w io.Writer, s *launch.Run) {
	d, on := s.DeviceStats()
	switch {
	case !on:
		return
	case d.Resident:
		fmt.Fprint(w, "device: all experts in its memory")
	default:
		fmt.Fprintf(w, "device: %d experts in %.1f MiB, %d hits, %d misses, %d evictions, %.1f MiB copied", d.Slots, float64(d.BudgetBytes)/(1<<20), d.Hits, d.Misses,
			d.Evictions, float64(d.CopiedBytes)/(1<<20))
	}
	if d.Graph {
		fmt.Fprint(w, ", a decode step is one graph")
	}
	fmt.Fprintln(w)
}

// hostCacheNote says what the host's cache is for where the device has all experts; "" where nothing is to be said.
func hostCacheNote(r *launch.Run) string {
	d, on := r.DeviceStats()
	switch c := r.Config(); {
	case !on || !d.Resident || r.Plan.BudgetBytes == 0:
		return ""
	case r.IdleCache():
		return "all experts are in its memory, so the host's cache (--cache-mb) is not used"
	case c.Drop.Frac > 0:
		return "--drop-cold-experts goes by the host's cache alone: it drops here too, though all experts are in the device's memory, where that saves nothing"
	}
	return "all experts are in its memory: the host's cache (--cache-mb) is told of them for the route trace and reads nothing"
}
