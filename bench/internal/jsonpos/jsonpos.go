// Package jsonpos says where in a document an error of package encoding/json is.
package jsonpos

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Describe adds line and column, both from 1, to an error that decoding b gave. Errors that carry no
// offset come back as they are.
func Describe(b []byte, err error) error {
	var off int64
	switch e := err.(type) {
	case *json.SyntaxError:
		off = e.Offset
	case *json.UnmarshalTypeError:
		off = e.Offset
	default:
		return err
	}
	before := b[:min(max(off-1, 0), int64(len(b)))]
	return fmt.Errorf("line %d column %d: %w", bytes.Count(before, []byte("\n"))+1, len(before)-bytes.LastIndexByte(before, '\n'), err)
}
