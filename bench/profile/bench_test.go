package profile

import (
	"bytes"
	"testing"
)

// BenchmarkRead streams a file of the reference's rows; the bytes are those of the text.
func BenchmarkRead(b *testing.B) {
	data := repeatRows(referenceCSV(b), 8)
	b.Run("rows=reference", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Read(bytes.NewReader(data), "ops.csv", Options{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	quoted := quoteAll(data)
	b.Run("rows=quoted", func(b *testing.B) {
		b.SetBytes(int64(len(quoted)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Read(bytes.NewReader(quoted), "ops.csv", Options{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
