package main

import (
	"os"
	"path/filepath"
)

// namedFile is a file and what names it, or what it is; without a path there is none.
type namedFile struct{ what, path string }

// apart refuses outputs that are an input or each other: to create the one would be to destroy the other. Devices and pipes
// may serve several.
func apart(inputs, outputs []namedFile) error {
	for i, out := range outputs {
		for _, in := range inputs {
			if sameFile(in.path, out.path) {
				return usagef("%s %s would overwrite %s", out.what, out.path, in.what)
			}
		}
		for _, other := range outputs[:i] {
			if sameFile(other.path, out.path) {
				return usagef("%s and %s both name %s", other.what, out.what, out.path)
			}
		}
	}
	return nil
}

func sameFile(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	x, errA := os.Stat(a)
	y, errB := os.Stat(b)
	if errA == nil && errB == nil {
		return x.Mode().IsRegular() && os.SameFile(x, y)
	}
	if errA == nil || errB == nil {
		return false
	}
	a, errA = filepath.Abs(a)
	b, errB = filepath.Abs(b)
	return errA == nil && errB == nil && a == b
}

// apart holds a session's recordings against the model, the saved cache that it begins with, and each other.
func (s *setup) apart(t *taps) error {
	var inputs []namedFile
	for _, f := range s.Layout.Files {
		inputs = append(inputs, namedFile{"the model", f.Path})
	}
	outputs := s.outputs
	if t != nil {
		outputs = append(outputs, namedFile{"--sel-dump", t.selPath}, namedFile{"--route-trace", t.tracePath})
	}
	save := namedFile{what: "--cache-save"}
	if s.stream != nil {
		outputs = append(outputs, namedFile{"the log of the steps", s.stream.csv})
		save.path = s.stream.save
		if err := apart([]namedFile{{"the cache state that is loaded", s.stream.load}}, outputs); err != nil {
			return err
		}
	}
	return apart(inputs, append(outputs, save)) // a saved cache may replace the one that was loaded
}
