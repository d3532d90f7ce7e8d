// Package dump reads and writes the two recordings of a run: the selection dump and the route trace.
//
// Selection dump (memra-moe-sel-v1, SelWriter and SelReader): what the router chose and nothing else, little-endian, no
// header, one record per (routed token, MoE layer) in the order the forward pass makes them:
//
//	u8 layer | u8 n_sel | n_sel x { u16 expert, f32 weight }       2 + 6*n_sel bytes
//
// What a record cannot carry (model, expert count, run configuration) stands in a sidecar, PATH.meta.json (SelMeta); whose
// each record is, where an engine computes several sequences in one pass, in another, PATH.rows (RowsReader, SelRowReader).
//
// Route trace (# route_trace v1, TraceWriter and TraceReader): text, one line per routed expert with its weight, its
// residency, the bytes its read cost and whether the drop policy dropped it, under a preamble of key=value lines. A run of
// several sequences says for each line whose it is (Row).
//
// Both formats are contracts with tools outside this module; docs/format describes them byte by byte. Both writers
// buffer, write whole records only, and lose at most the last second to a kill -9; see sink for how. A writer that is
// nil records nothing, so an engine calls its taps unconditionally.
//
// The package does not interpret what it reads: replays of a policy or a cache, co-activation counts and placements
// are built on its readers elsewhere. It never logs; what a caller should tell its user comes back from Notes.
package dump

import "fmt"

// TornError says that a recording ends inside a record, as a killed or out-of-space writer leaves it. All records
// before the tear were delivered and are sound.
type TornError struct {
	Records uint64 // whole records (rows of a trace) before the tear
	Offset  int64  // byte at which the incomplete record begins: the length of the sound part
	Err     error  // what was wrong with the incomplete record; nil where there is nothing more to say
}

func (e *TornError) Error() string {
	s := fmt.Sprintf("dump: torn tail: %d whole records, torn at byte %d", e.Records, e.Offset)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns Err.
func (e *TornError) Unwrap() error { return e.Err }
