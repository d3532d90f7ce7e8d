package store

import (
	"fmt"
	"io"
	"math"
	"os"
	"sort"
)

// Extent is the byte range [Off, Off+Len) of Layout.Files[File].
type Extent struct {
	File int
	Off  int64
	Len  int64 // 0: the projection is absent
}

// ExpertExtents says where the three projections of one expert lie, each as contiguous quantised rows in file layout.
type ExpertExtents struct{ Gate, Up, Down Extent }

// projections is the number of extents of an expert, in the order gate, up, down.
const projections = 3

var projectionNames = [projections]string{"gate", "up", "down"}

func (e *ExpertExtents) at(p int) *Extent {
	switch p {
	case 0:
		return &e.Gate
	case 1:
		return &e.Up
	}
	return &e.Down
}

// bytes returns the logical bytes of the expert.
func (e *ExpertExtents) bytes() int64 { return e.Gate.Len + e.Up.Len + e.Down.Len }

// File is one file that experts lie in. The caller keeps Map and ReaderAt valid for as long as a Source made from it is
// open; sources never close them and never write to Map.
type File struct {
	Name     string      // how errors name the file
	ReaderAt io.ReaderAt // may be nil where Map or Path is given
	Path     string      // "": in memory only, so that direct I/O does not apply
	Map      []byte      // mapping or memory of the whole file; nil: not mapped
}

// size returns the length of the file in bytes: of the mapping, else as the reader or the file system says.
func (f *File) size() (int64, error) {
	if f.Map != nil {
		return int64(len(f.Map)), nil
	}
	switch r := f.ReaderAt.(type) {
	case interface{ Size() int64 }:
		return r.Size(), nil
	case interface{ Stat() (os.FileInfo, error) }:
		fi, err := r.Stat()
		if err != nil {
			return 0, err
		}
		return fi.Size(), nil
	}
	if f.Path == "" {
		return 0, fmt.Errorf("neither a mapping nor a path nor a reader that knows its size")
	}
	fi, err := os.Stat(f.Path)
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

// Layout says where every expert of a model lies.
type Layout struct {
	Files []File
	// Experts is indexed [layer][expert]; layer is the layer's index in the model and a dense layer has nil. Experts of
	// one layer have the same projections; their sizes may differ, those of different layers often do.
	Experts [][]ExpertExtents
}

// Expert is one expert's weights, each projection as contiguous quantised rows in file layout; nil: absent.
type Expert struct{ Gate, Up, Down []byte }

func (e *Expert) set(p int, b []byte) {
	switch p {
	case 0:
		e.Gate = b
	case 1:
		e.Up = b
	default:
		e.Down = b
	}
}

// ExpertBytes returns the logical bytes of one expert of the layer, of the largest one where they differ, and 0 for a
// dense layer.
func (l *Layout) ExpertBytes(layer int) int64 {
	var most int64
	for i := range l.Experts[layer] {
		most = max(most, l.Experts[layer][i].bytes())
	}
	return most
}

// maxFileBytes bounds a file (256 TiB) so that no sum over an expert's padded extents can overflow an int64.
const maxFileBytes = 1 << 48

// Validate checks that every expert is present and that every extent lies inside its file. An error names layer, expert
// and projection, the extent's end and the file's size.
func (l *Layout) Validate() error {
	sizes := make([]int64, len(l.Files))
	for i := range l.Files {
		n, err := l.Files[i].size()
		if err != nil {
			return fmt.Errorf("moe: size of %s: %w", l.Files[i].Name, err)
		}
		if n < 0 || n > maxFileBytes {
			return fmt.Errorf("moe: %s: size %d outside 0..%d", l.Files[i].Name, n, int64(maxFileBytes))
		}
		sizes[i] = n
	}
	total := 0
	for layer, experts := range l.Experts {
		total += len(experts)
		for e := range experts {
			if err := l.validateExpert(layer, e, sizes); err != nil {
				return err
			}
		}
	}
	if total == 0 {
		return fmt.Errorf("moe: layout of %d layers has no experts", len(l.Experts))
	}
	if total > math.MaxInt32 {
		return fmt.Errorf("moe: layout has %d experts, at most %d are supported", total, math.MaxInt32)
	}
	return nil
}

func (l *Layout) validateExpert(layer, e int, sizes []int64) error {
	x, first := &l.Experts[layer][e], &l.Experts[layer][0]
	if x.Gate.Len == 0 && x.Up.Len == 0 && x.Down.Len == 0 {
		return fmt.Errorf("moe: layer %d expert %d: absent (all three projections have length 0)", layer, e)
	}
	for p := range projections {
		t := x.at(p)
		if t.Len == 0 && first.at(p).Len == 0 {
			continue
		}
		if (t.Len == 0) != (first.at(p).Len == 0) {
			return fmt.Errorf("moe: layer %d expert %d: %s has %d bytes, expert 0 has %d: present in some experts only",
				layer, e, projectionNames[p], t.Len, first.at(p).Len)
		}
		if t.File < 0 || t.File >= len(sizes) {
			return fmt.Errorf("moe: layer %d expert %d: %s in file %d of %d", layer, e, projectionNames[p], t.File, len(sizes))
		}
		// Compared without adding, so that a hostile offset cannot wrap around.
		if size := sizes[t.File]; t.Len < 0 || t.Off < 0 || t.Len > size || t.Off > size-t.Len {
			return fmt.Errorf("moe: layer %d expert %d: %s: %d bytes at offset %#x outside %s of %#x bytes",
				layer, e, projectionNames[p], t.Len, t.Off, l.Files[t.File].Name, size)
		}
	}
	return nil
}

// usedFiles returns the indices of the files that experts lie in, ascending: a shard without experts is not opened.
func (l *Layout) usedFiles() []int {
	seen := make(map[int]bool)
	for _, experts := range l.Experts {
		for e := range experts {
			for p := range projections {
				if t := experts[e].at(p); t.Len > 0 {
					seen[t.File] = true
				}
			}
		}
	}
	used := make([]int, 0, len(seen))
	for f := range seen {
		used = append(used, f)
	}
	sort.Ints(used)
	return used
}
