// Package columns writes recordings as Parquet, so that engines that outgrow one machine (DuckDB, Spark, ClickHouse)
// answer what this program does not: one row per routed slot, of a selection dump as of a route trace. The columns
// stand in docs/format/parquet.md.
//
// Encodings are chosen so that the file is smaller than the recording, which text and packed binary make easy to miss:
// counters (record, token, step) as deltas, ids (layer, slot, expert) in dictionaries, weights split by bytes so that
// their exponents compress, and zstd over all pages. A file of some hundred slots is larger than its dump: Parquet's
// footer alone takes more than a kilobyte.
//
// Rows go out in groups, so memory does not grow with the recording.
package columns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/parquet-go/parquet-go"

	"sluice/dump"
	"sluice/dump/inspect"
)

// Summary is what was exported.
type Summary struct {
	Kind    string        `json:"kind"`    // selection dump or route trace
	Records uint64        `json:"records"` // whole ones; rows of a trace
	Rows    uint64        `json:"rows"`    // written
	Torn    *inspect.Torn `json:"torn"`
}

// Facts are pairs for the file's key-value metadata, beside those that the recording itself states.
type Facts map[string]string

// set writes the pairs of several sources into the metadata, later ones over earlier ones and sorted by key, so that
// one recording always gives the same bytes.
func set(w interface{ SetKeyValueMetadata(key, value string) }, sources ...Facts) {
	all := Facts{}
	for _, s := range sources {
		maps.Copy(all, s)
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		w.SetKeyValueMetadata(key, all[key])
	}
}

const (
	groupRows = 1 << 20 // rows of one row group
	blockRows = 1 << 12 // rows handed over at a time
	createdBy = "sluice"
)

// Export writes the recording r, from its beginning, as Parquet to w. A torn tail ends the rows and is part of the
// summary; anything else that the recording's reader refuses is an error, and then what w has got is no Parquet file.
func Export(ctx context.Context, w io.Writer, r io.ReadSeeker, facts Facts) (*Summary, error) {
	kind, err := inspect.Detect(r)
	if err != nil {
		return nil, err
	}
	s := &Summary{Kind: kind.String()}
	if kind == inspect.Trace {
		err = s.trace(ctx, w, r, facts)
	} else {
		err = s.selection(ctx, w, r, facts)
	}
	if err != nil {
		return nil, fmt.Errorf("columns: %w", err)
	}
	return s, nil
}

// ended takes the error that a reader ended with: nil where the recording ends, torn or not.
func (s *Summary) ended(err error) error {
	var torn *dump.TornError
	if errors.As(err, &torn) {
		s.Torn = &inspect.Torn{Records: torn.Records, Offset: torn.Offset}
		return nil
	}
	if err == io.EOF {
		return nil
	}
	return err
}

func options(schema *parquet.Schema) []parquet.WriterOption {
	return []parquet.WriterOption{
		schema,
		parquet.CreatedBy(createdBy, "1", ""),
		parquet.Compression(&parquet.Zstd),
		parquet.MaxRowsPerRowGroup(groupRows),
		parquet.PageBufferSize(256 << 10),
	}
}
