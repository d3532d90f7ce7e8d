package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"sluice/moe"
)

// A cache state is a file of which experts a session's cache held (docs/format/cache-state.md), little-endian:
//
//	magic      8 bytes   "SLUICECS"
//	version    u32       1
//	record     u32       bytes of a record: 16
//	model      32 bytes  Model.Identity of the model that it belongs to
//	count      u32       records
//	records    count times, the next to be evicted first:
//	           layer u32, expert u32, uses u32, flags u32 (bit 0: protected)
//	checksum   u32       CRC-32C of all before
const (
	stateMagic   = "SLUICECS"
	stateVersion = 1
	stateRecord  = 16
	stateHead    = len(stateMagic) + 4 + 4 + sha256.Size + 4
)

// Errors that a cache state file may be refused with; the message says what was found and wanted.
var (
	ErrStateCorrupt = errors.New("not a whole cache state")          // bytes are missing, too many, or changed
	ErrStateModel   = errors.New("the cache state of another model") // tensor tables differ
	ErrStateVersion = errors.New("a cache state of another version") // written by another release
	errNoKeeper     = errors.New("engine: no expert cache to keep")  // mapped and resident sources
)

// Identity is a hash of the model's tensor table: name, type, dimensions, file, offset and size of each tensor. Files that
// agree in it have the same experts in the same places. The weights are not part of it.
func (m *Model) Identity() [sha256.Size]byte {
	h := sha256.New()
	for _, t := range m.File.Tensors() {
		fmt.Fprintf(h, "%q %d %v %d %d %d\n", t.Name, t.Type, t.Dims, t.Shard, t.Offset, t.Size)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// SaveCache writes which experts the session's cache holds to path, beside it first and then under its name. It returns
// their number. A session without an expert cache is an error.
func (s *Session) SaveCache(path string) (experts int, err error) {
	k, ok := s.src.(moe.Keeper)
	if !ok {
		return 0, errNoKeeper
	}
	list, err := k.Residents()
	if err != nil {
		return 0, err
	}
	data := encodeState(s.m.Identity(), list)
	if err := writeBeside(path, data); err != nil {
		return 0, fmt.Errorf("engine: cache state: %w", err)
	}
	return len(list), nil
}

// LoadCache reads the experts of a cache state into the session's cache, before the first token. Of a state that does not
// fit in the budget the most used experts are taken. The result tells what that took; nothing of it counts in the session's
// other figures. A file of another model, another version, or with other bytes than were written is refused
// (ErrStateModel, ErrStateVersion, ErrStateCorrupt) before anything is read. After any later error, ctx's included, the
// session is of no use but to be closed.
func (s *Session) LoadCache(ctx context.Context, path string) (moe.Loaded, error) {
	k, ok := s.src.(moe.Keeper)
	if !ok {
		return moe.Loaded{}, errNoKeeper
	}
	data, err := readState(path)
	if err != nil {
		return moe.Loaded{}, fmt.Errorf("engine: cache state: %w", err)
	}
	list, err := decodeState(data, s.m.Identity())
	if err != nil {
		return moe.Loaded{}, fmt.Errorf("engine: cache state %s: %w", path, err)
	}
	l, err := k.Load(ctx, list)
	if err != nil {
		return l, fmt.Errorf("engine: cache state %s: %w", path, err)
	}
	s.cfg.Telemetry.rebase()
	return l, nil
}

// maxStateBytes is more than any model's state takes: a million experts.
const maxStateBytes = 16 << 20

func readState(path string) ([]byte, error) {
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

func encodeState(model [sha256.Size]byte, list []moe.Resident) []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, stateHead+stateRecord*len(list)+4)
	b = append(b, stateMagic...)
	b = le.AppendUint32(b, stateVersion)
	b = le.AppendUint32(b, stateRecord)
	b = append(b, model[:]...)
	b = le.AppendUint32(b, uint32(len(list)))
	for _, r := range list {
		var flags uint32
		if r.Protected {
			flags = 1
		}
		b = le.AppendUint32(b, uint32(r.Layer))
		b = le.AppendUint32(b, uint32(r.Expert))
		b = le.AppendUint32(b, r.Uses)
		b = le.AppendUint32(b, flags)
	}
	return le.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// decodeState checks everything but whether the model has the experts, which loading does.
func decodeState(data []byte, model [sha256.Size]byte) ([]moe.Resident, error) {
	le := binary.LittleEndian
	if len(data) < stateHead+4 {
		return nil, fmt.Errorf("%d bytes, the shortest has %d: %w", len(data), stateHead+4, ErrStateCorrupt)
	}
	if magic := data[:len(stateMagic)]; string(magic) != stateMagic {
		return nil, fmt.Errorf("begins with %q, want %q: %w", magic, stateMagic, ErrStateCorrupt)
	}
	rest := data[len(stateMagic):]
	// The version comes before the checksum: another version's may be elsewhere.
	if v := le.Uint32(rest); v != stateVersion {
		return nil, fmt.Errorf("version %d, want %d: %w", v, stateVersion, ErrStateVersion)
	}
	body, sum := data[:len(data)-4], le.Uint32(data[len(data)-4:])
	if got := crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)); got != sum {
		return nil, fmt.Errorf("checksum %08x, the bytes give %08x: %w", sum, got, ErrStateCorrupt)
	}
	record, found, count := le.Uint32(rest[4:]), rest[8:8+sha256.Size], le.Uint32(rest[8+sha256.Size:])
	if n := uint64(len(body) - stateHead); record != stateRecord || uint64(count)*stateRecord != n {
		return nil, fmt.Errorf("%d records of %d bytes in %d bytes, want records of %d: %w", count, record, n, stateRecord, ErrStateCorrupt)
	}
	if string(found) != string(model[:]) {
		return nil, fmt.Errorf("tensor table %x..., the model's is %x...: %w", found[:8], model[:8], ErrStateModel)
	}
	list := make([]moe.Resident, count)
	for i := range list {
		r := body[stateHead+i*stateRecord:]
		flags := le.Uint32(r[12:])
		if flags > 1 {
			return nil, fmt.Errorf("record %d: flags %#x, want 0 or 1: %w", i, flags, ErrStateCorrupt)
		}
		list[i] = moe.Resident{Layer: int32(le.Uint32(r)), Expert: int32(le.Uint32(r[4:])), Uses: le.Uint32(r[8:]), Protected: flags == 1}
	}
	return list, nil
}

// writeBeside writes a file under another name in the same folder and renames it once it is whole.
func writeBeside(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
