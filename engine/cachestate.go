package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"slices"

	"sluice/internal/whole"
	"sluice/moe/store"
)

// A cache state is a file of what a session's cache has come to (docs/format/cache-state.md), little-endian:
//
//	magic      8 bytes   "SLUICECS"
//	version    u32       2
//	record     u32       bytes of a record: 24
//	model      32 bytes  Model.Identity of the model that it belongs to
//	residents  u32       records of resident experts
//	gone       u32       records of others
//	next use   f64       store.CacheState.NextUse
//	records    the residents, the next to be evicted first, then the others:
//	           layer u32, expert u32, uses u32, flags u32 (bit 0: protected, bit 1: unused), score f64
//	checksum   u32       CRC-32C of all before
//
// Version 1 has residents only: after the model's identity their number, then records of 16 bytes without a score.
const (
	stateMagic    = "SLUICECS"
	stateVersion  = 2
	stateRecord   = 24
	stateHead     = len(stateMagic) + 4 + 4 + sha256.Size + 4 + 4 + 8
	stateRecordV1 = 16
	stateHeadV1   = len(stateMagic) + 4 + 4 + sha256.Size + 4

	stateProtected = 1 // flags
	stateUnused    = 2
)

// Errors that a cache state file may be refused with; the message says what was found and wanted.
var (
	ErrStateCorrupt = errors.New("not a whole cache state")          // bytes are missing, too many, or changed
	ErrStateModel   = errors.New("the cache state of another model") // tensor tables differ
	ErrStateVersion = errors.New("a cache state of another version") // written by another release
	errNoKeeper     = errors.New("engine: no expert cache to keep")  // mapped and resident sources
)

// SaveCache writes what the session's cache has come to to path, beside it first and then under its name. It returns the
// number of resident experts. A session without an expert cache is an error.
func (e *Engine) SaveCache(path string) (experts int, err error) {
	k, ok := e.src.(store.Keeper)
	if !ok {
		return 0, errNoKeeper
	}
	st, err := k.State()
	if err != nil {
		return 0, err
	}
	data := encodeState(e.m.Identity(), st)
	if err := whole.WriteFile(path, func(w io.Writer) error { _, err := w.Write(data); return err }); err != nil {
		return 0, fmt.Errorf("engine: cache state: %w", err)
	}
	return len(st.Residents), nil
}

// LoadCache reads the experts of a cache state into the session's cache, before the first token. With the budget and policy
// of the session that saved it this one then decides as that one would have gone on. Of a state that does not fit in the
// budget the most used experts are taken. The result tells what that took; nothing of it counts in the session's
// other figures. A file of another model, another version, or with other bytes than were written is refused
// (ErrStateModel, ErrStateVersion, ErrStateCorrupt) before anything is read. After any later error, ctx's included, the
// session is of no use but to be closed.
func (e *Engine) LoadCache(ctx context.Context, path string) (store.Loaded, error) {
	k, ok := e.src.(store.Keeper)
	if !ok {
		return store.Loaded{}, errNoKeeper
	}
	f, err := ReadCacheState(path)
	if err != nil {
		return store.Loaded{}, err
	}
	if model := e.m.Identity(); f.Model != model {
		return store.Loaded{}, fmt.Errorf("engine: cache state %s: tensor table %x..., the model's is %x...: %w", path, f.Model[:8], model[:8], ErrStateModel)
	}
	l, err := k.Load(ctx, f.CacheState)
	if err != nil {
		return l, fmt.Errorf("engine: cache state %s: %w", path, err)
	}
	e.cfg.Telemetry.rebase()
	return l, nil
}

// Settle waits until no expert is being read ahead any more, so that the counters hold everything that was asked for.
func (e *Engine) Settle() {
	if k, ok := e.src.(store.Keeper); ok {
		k.Settle()
	}
}

// StateFile is a cache state file as read.
type StateFile struct {
	store.CacheState
	Model [sha256.Size]byte // Model.Identity of the model that it belongs to
	Sum   uint32            // its checksum
}

// ReadCacheState reads a cache state file. Errors are those of LoadCache, but that a file of any model is taken.
func ReadCacheState(path string) (*StateFile, error) {
	data, err := readState(path)
	if err != nil {
		return nil, fmt.Errorf("engine: cache state: %w", err)
	}
	f, err := decodeState(data)
	if err != nil {
		return nil, fmt.Errorf("engine: cache state %s: %w", path, err)
	}
	return f, nil
}

// maxStateBytes is more than any model's state takes: a million experts.
const maxStateBytes = 24 << 20

func readState(path string) ([]byte, error) {
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() { // to open a pipe is to wait for its other end
		return nil, fmt.Errorf("%s: not a regular file (%s)", path, st.Mode().Type())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxStateBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxStateBytes {
		return nil, fmt.Errorf("%s: more than %d bytes: %w", path, maxStateBytes, ErrStateCorrupt)
	}
	return data, nil
}

func encodeState(model [sha256.Size]byte, st store.CacheState) []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, stateHead+stateRecord*(len(st.Residents)+len(st.Gone))+4)
	b = append(b, stateMagic...)
	b = le.AppendUint32(b, stateVersion)
	b = le.AppendUint32(b, stateRecord)
	b = append(b, model[:]...)
	b = le.AppendUint32(b, uint32(len(st.Residents)))
	b = le.AppendUint32(b, uint32(len(st.Gone)))
	b = le.AppendUint64(b, math.Float64bits(st.NextUse))
	for _, r := range slices.Concat(st.Residents, st.Gone) {
		var flags uint32
		if r.Protected {
			flags |= stateProtected
		}
		if r.Unused {
			flags |= stateUnused
		}
		b = le.AppendUint32(b, uint32(r.Layer))
		b = le.AppendUint32(b, uint32(r.Expert))
		b = le.AppendUint32(b, r.Uses)
		b = le.AppendUint32(b, flags)
		b = le.AppendUint64(b, math.Float64bits(r.Score))
	}
	return le.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// decodeState checks everything but whether the model has the experts and the scores are such, which loading does.
func decodeState(data []byte) (*StateFile, error) {
	le := binary.LittleEndian
	if len(data) < stateHeadV1+4 {
		return nil, fmt.Errorf("%d bytes, the shortest has %d: %w", len(data), stateHeadV1+4, ErrStateCorrupt)
	}
	if magic := data[:len(stateMagic)]; string(magic) != stateMagic {
		return nil, fmt.Errorf("begins with %q, want %q: %w", magic, stateMagic, ErrStateCorrupt)
	}
	rest := data[len(stateMagic):]
	// The version comes before the checksum: another version's may be elsewhere.
	head, record := stateHead, uint32(stateRecord)
	switch v := le.Uint32(rest); v {
	case 1:
		head, record = stateHeadV1, stateRecordV1
	case stateVersion:
		if len(data) < stateHead+4 {
			return nil, fmt.Errorf("%d bytes, the shortest has %d: %w", len(data), stateHead+4, ErrStateCorrupt)
		}
	default:
		return nil, fmt.Errorf("version %d, want 1 or %d: %w", v, stateVersion, ErrStateVersion)
	}
	body, sum := data[:len(data)-4], le.Uint32(data[len(data)-4:])
	if got := crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)); got != sum {
		return nil, fmt.Errorf("checksum %08x, the bytes give %08x: %w", sum, got, ErrStateCorrupt)
	}
	f := &StateFile{Model: [sha256.Size]byte(rest[8:]), Sum: sum}
	counts := rest[8+sha256.Size:]
	residents, gone := le.Uint32(counts), uint32(0)
	if head == stateHead {
		gone, f.NextUse = le.Uint32(counts[4:]), math.Float64frombits(le.Uint64(counts[8:]))
	}
	if n, got := uint64(len(body)-head), le.Uint32(rest[4:]); got != record || (uint64(residents)+uint64(gone))*uint64(record) != n {
		return nil, fmt.Errorf("%d records of %d bytes in %d bytes, want records of %d: %w", uint64(residents)+uint64(gone), got, n, record, ErrStateCorrupt)
	}
	list := make([]store.Resident, residents+gone)
	for i := range list {
		r := body[head+i*int(record):]
		known, flags := uint32(stateProtected), le.Uint32(r[12:])
		x := store.Resident{Layer: int32(le.Uint32(r)), Expert: int32(le.Uint32(r[4:])), Uses: le.Uint32(r[8:]),
			Protected: flags&stateProtected != 0, Unused: flags&stateUnused != 0}
		if record == stateRecord {
			known, x.Score = stateProtected|stateUnused, math.Float64frombits(le.Uint64(r[16:]))
		}
		if i >= int(residents) {
			known = 0
		}
		if flags&^known != 0 {
			return nil, fmt.Errorf("record %d: flags %#x, want at most %#x: %w", i, flags, known, ErrStateCorrupt)
		}
		list[i] = x
	}
	f.Residents, f.Gone = list[:residents:residents], list[residents:]
	return f, nil
}
