package main

import (
	"fmt"
	"io"

	"sluice/engine"
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
func deviceReport(s *engine.Session) *deviceJSON {
	d, on := s.DeviceStats()
	if !on {
		return nil
	}
	return &deviceJSON{s.Config().Device.Name(), d.Resident, d.BudgetBytes, d.Slots, d.Hits, d.Misses, d.Evictions, d.CopiedBytes, d.Graph}
}

// printDevice says the same in words.
func printDevice(w io.Writer, s *engine.Session) {
	d, on := s.DeviceStats()
	switch {
	case !on:
		return
	case d.Resident:
		fmt.Fprint(w, "device: all experts in its memory")
	default:
		fmt.Fprintf(w, "device: %d experts in %d MiB, %d hits, %d misses, %d evictions, %.1f MiB copied", d.Slots, d.BudgetBytes>>20, d.Hits, d.Misses,
			d.Evictions, float64(d.CopiedBytes)/(1<<20))
	}
	if d.Graph {
		fmt.Fprint(w, ", a decode step is one graph")
	}
	fmt.Fprintln(w)
}
