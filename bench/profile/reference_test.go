package profile

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"strings"
	"testing"
)

// referenceCSV is testdata/dlv3_ops.csv.gz unpacked; testdata/README.md says where it is from.
func referenceCSV(t testing.TB) []byte {
	t.Helper()
	return unpack(t, "testdata/dlv3_ops.csv.gz")
}

func unpack(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// repeatRows keeps the header once and the rows n times.
func repeatRows(csv []byte, n int) []byte {
	i := bytes.IndexByte(csv, '\n') + 1
	return append(bytes.Clone(csv[:i]), bytes.Repeat(csv[i:], n)...)
}

// quoteAll puts quotes around every field of a file that has none.
func quoteAll(csv []byte) []byte {
	var b strings.Builder
	for line := range strings.Lines(string(csv)) {
		line, _ = strings.CutSuffix(line, "\n")
		line, _ = strings.CutSuffix(line, "\r")
		b.WriteString(`"` + strings.ReplaceAll(line, ",", `","`) + "\"\n")
	}
	return []byte(b.String())
}
