package quality

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// DefaultStoreLimit is Config.StoreLimit when none is given: 8 GiB, 13 000 predictions over a vocabulary of 150 000.
const DefaultStoreLimit = 8 << 30

// store is the undropped run's logits, float32 without loss, in a temporary file: predictions x nVocab x 4 bytes.
//
// The alternative is to run the undropped session in lockstep beside each point, which stores nothing. But that session is
// the one that reads most: it would be run once a point instead of once, need a second cache of the same budget, and read
// from the device that the point reads from. A row of logits is 4 bytes a vocabulary entry and is read in sequence; a
// token's experts are a hundred times as much.
type store struct {
	f    *os.File
	w    *bufio.Writer
	r    *bufio.Reader
	row  []byte
	rows int
}

// newStore makes the file in dir ("": the system's place for temporary files).
func newStore(dir string, nVocab int) (*store, error) {
	f, err := os.CreateTemp(dir, "sluice-logits-*")
	if err != nil {
		return nil, fmt.Errorf("quality: %w", err)
	}
	return &store{f: f, w: bufio.NewWriterSize(f, 1<<20), row: make([]byte, 4*nVocab)}, nil
}

func (s *store) add(logits []float32) error {
	for i, v := range logits {
		binary.LittleEndian.PutUint32(s.row[4*i:], math.Float32bits(v))
	}
	if _, err := s.w.Write(s.row); err != nil {
		return fmt.Errorf("quality: keeping the undropped run's logits: %w", err)
	}
	s.rows++
	return nil
}

// rewind begins to read at the first row.
func (s *store) rewind() error {
	err := s.w.Flush()
	if err == nil {
		_, err = s.f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("quality: keeping the undropped run's logits: %w", err)
	}
	s.r = bufio.NewReaderSize(s.f, 1<<20)
	return nil
}

// next fills logits with the next row.
func (s *store) next(logits []float32) error {
	if _, err := io.ReadFull(s.r, s.row); err != nil {
		return fmt.Errorf("quality: the undropped run's logits: %w", err)
	}
	for i := range logits {
		logits[i] = math.Float32frombits(binary.LittleEndian.Uint32(s.row[4*i:]))
	}
	return nil
}

// close removes the file.
func (s *store) close() error { return errors.Join(s.f.Close(), os.Remove(s.f.Name())) }
