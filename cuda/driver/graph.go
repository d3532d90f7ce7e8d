//go:build cuda

package driver

// #include "launch.h"
import "C"

import (
	"errors"
	"unsafe"
)

// Graph is work captured from a stream, with its arguments; a launch does all of it at the cost of one call.
type Graph struct {
	d    *Device
	exec unsafe.Pointer
	n    Counters // what one launch does
}

// Capture runs f and makes a graph of what it puts into s, and into streams that wait for s and that s waits for again,
// instead of doing it. f may start launches and copies, zero memory, record events and wait for them; anything that
// waits on the host is refused by the driver. The graph belongs to the caller, until Close.
func (d *Device) Capture(s *Stream, f func() error) (*Graph, error) {
	d.inside("Capture")
	if d.graph != nil {
		panic("cuda: Capture inside Capture")
	}
	if err := failed(C.sluice_capture_begin(s.h), "starting to capture a graph"); err != nil {
		return nil, err
	}
	g := &Graph{d: d}
	d.graph = g
	err := f()
	d.graph = nil
	end := failed(C.sluice_capture_end(s.h, &g.exec), "capturing a graph")
	if err != nil || end != nil {
		if g.exec != nil {
			end = errors.Join(end, g.release())
		}
		return nil, errors.Join(err, end)
	}
	d.owned[g] = struct{}{}
	return g, nil
}

// Launch puts the graph's work into s and waits for none of it. A graph runs one launch after another, whatever the
// streams.
func (g *Graph) Launch(s *Stream) error {
	g.d.inside("Launch")
	g.d.n.add(Counters{GraphLaunches: 1, GraphKernels: g.n.Launches, CopiesIn: g.n.CopiesIn, BytesIn: g.n.BytesIn,
		CopiesOut: g.n.CopiesOut, BytesOut: g.n.BytesOut, CopiesWithin: g.n.CopiesWithin, BytesWithin: g.n.BytesWithin})
	return failed(C.sluice_graph_launch(g.exec, s.h), "launching a graph")
}

// Kernels returns the number of kernels that one launch starts.
func (g *Graph) Kernels() int64 { return g.n.Launches }

// Close gives the graph back; launches under way end first. A second Close does nothing.
func (g *Graph) Close() error {
	g.d.inside("Close")
	return g.d.drop(g)
}

func (g *Graph) held() (string, int64) { return "graph", 0 }
func (g *Graph) release() error        { return failed(C.sluice_graph_free(g.exec), "freeing a graph") }
