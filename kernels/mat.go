package kernels

import (
	"fmt"
	"math/bits"
)

// Mat is a weight matrix in a file's layout: Rows rows of Cols elements, row after row, each row whole blocks. Data is
// the caller's (often a read-only mapping) and is never written.
type Mat struct {
	Type Type
	Rows int
	Cols int
	Data []byte // Rows * Type.RowBytes(Cols)
}

// NewMat describes data as a rows x cols matrix. It keeps data, copies nothing, and fails when the type is not
// Supported, cols is not whole blocks, or len(data) is not the exact size.
func NewMat(t Type, rows, cols int, data []byte) (Mat, error) {
	if !t.Supported() {
		return Mat{}, fmt.Errorf("kernels: matrix of type %v: not supported", t)
	}
	if rows < 0 || cols < 0 || cols%t.BlockLen() != 0 {
		return Mat{}, fmt.Errorf("kernels: %v matrix of %d rows of %d: row is not whole blocks of %d", t, rows, cols, t.BlockLen())
	}
	over, row := bits.Mul64(uint64(cols/t.BlockLen()), uint64(t.BlockBytes()))
	over2, want := bits.Mul64(uint64(rows), row)
	if over != 0 || over2 != 0 || want != uint64(len(data)) {
		return Mat{}, fmt.Errorf("kernels: %v matrix of %d rows of %d: %d bytes do not fit, want rows of %d bytes", t, rows, cols, len(data), row)
	}
	return Mat{Type: t, Rows: rows, Cols: cols, Data: data}, nil
}

// row returns the bytes of row r.
func (w *Mat) row(r int) []byte {
	n := w.Type.RowBytes(w.Cols)
	return w.Data[r*n : (r+1)*n]
}
