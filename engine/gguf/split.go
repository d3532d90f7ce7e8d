package gguf

import (
	"fmt"
	"strings"
)

const (
	keySplitNo      = "split.no"            // this file's number, from 0
	keySplitCount   = "split.count"         // files in the set; 0 in a file merged from a set
	keySplitTensors = "split.tensors.count" // tensors in the whole set

	// maxShards is what the writer of split files can count to: split.count is a u16 there.
	maxShards = 1<<16 - 1
)

// split is what a file's keys say about the set it belongs to. A count of 0 or 1 means a file that stands alone.
type split struct {
	no, count uint64
	total     uint64
	hasTotal  bool
}

// split reads the split keys of one file. The name of the file plays no part: cached files can be named like a shard without
// being one.
func (h *header) split() (split, error) {
	var sp split
	var err error
	uintKey := func(key string) (n uint64, has bool) {
		i, ok := h.index[key]
		if !ok || err != nil {
			return 0, false
		}
		n, err = uintOf(h.cur.file, key, h.kvs[i].val)
		return n, true
	}
	var hasNo, hasCount bool
	sp.count, hasCount = uintKey(keySplitCount)
	sp.no, hasNo = uintKey(keySplitNo)
	sp.total, sp.hasTotal = uintKey(keySplitTensors)
	file := h.cur.file
	switch {
	case err != nil:
		return split{}, err
	case sp.count > maxShards:
		return split{}, formatErr(file, -1, "key %q: %d, want at most %d", keySplitCount, sp.count, maxShards)
	case hasNo && !hasCount:
		return split{}, formatErr(file, -1, "key %q without key %q", keySplitNo, keySplitCount)
	case sp.count > 1 && !hasNo:
		return split{}, formatErr(file, -1, "key %q is %d but key %q is missing", keySplitCount, sp.count, keySplitNo)
	case sp.count > 1 && sp.no >= sp.count, sp.count == 1 && sp.no != 0:
		return split{}, formatErr(file, -1, "key %q: %d, want below the %d of key %q", keySplitNo, sp.no, sp.count, keySplitCount)
	}
	return sp, nil
}

// shardName returns the file name of shard no (from 0) of a set: the name counts from 1.
func shardName(prefix string, no, count uint64) string {
	return fmt.Sprintf("%s-%05d-of-%05d.gguf", prefix, no+1, count)
}

// shardSet holds the files opened so far, so that they can be closed when a later one fails.
type shardSet struct {
	shards  []Shard
	headers []*header
}

func (s *shardSet) close() {
	for i := range s.shards {
		s.shards[i].close() // the error that ended the opening is the one to report
	}
}

func (s *shardSet) add(sh Shard) (*header, split, error) {
	s.shards = append(s.shards, sh)
	h, err := readHeader(sh.Path, sh.Data)
	if err != nil {
		return nil, split{}, err
	}
	s.headers = append(s.headers, h)
	sp, err := h.split()
	return h, sp, err
}

// open opens path and, when its keys say so, the rest of its set.
func (s *shardSet) open(path string) (*File, error) {
	sh, err := mapFile(path)
	if err != nil {
		return nil, err
	}
	_, given, err := s.add(sh)
	if err != nil {
		return nil, err
	}
	if given.count <= 1 {
		return build(s.headers, s.shards, given)
	}
	suffix := shardName("", given.no, given.count)
	prefix, ok := strings.CutSuffix(path, suffix)
	if !ok {
		return nil, formatErr(path, -1, "keys say shard %d of %d, so the name must end in %q", given.no+1, given.count, suffix)
	}
	if err := s.openRest(path, prefix, given); err != nil {
		return nil, err
	}
	first, err := s.headers[0].split()
	if err == nil && !first.hasTotal {
		err = formatErr(s.shards[0].Path, -1, "key %q is missing, wanted in the first of %d shards", keySplitTensors, given.count)
	}
	if err != nil {
		return nil, err
	}
	return build(s.headers, s.shards, first)
}

// openRest opens the siblings of the given shard, which is already there, and leaves the set ordered by number.
func (s *shardSet) openRest(path, prefix string, given split) error {
	givenHeader, givenShard := s.headers[0], s.shards[0]
	headers := make([]*header, 0, 8)
	shards := make([]Shard, 0, 8)
	for no := uint64(0); no < given.count; no++ {
		if no == given.no {
			headers, shards = append(headers, givenHeader), append(shards, givenShard)
			continue
		}
		sibling := shardName(prefix, no, given.count)
		sh, err := mapFile(sibling)
		if err != nil {
			return fmt.Errorf("shard %d of %d, wanted by %s: %w", no+1, given.count, path, err)
		}
		h, sp, err := s.add(sh)
		if err != nil {
			return err
		}
		switch {
		case sp.count != given.count:
			return formatErr(sibling, -1, "key %q: %d, but %d in %s", keySplitCount, sp.count, given.count, path)
		case sp.no != no:
			return formatErr(sibling, -1, "key %q: %d, but the name says %d (counted from 0)", keySplitNo, sp.no, no)
		case sp.hasTotal && given.hasTotal && sp.total != given.total:
			return formatErr(sibling, -1, "key %q: %d, but %d in %s", keySplitTensors, sp.total, given.total, path)
		}
		headers, shards = append(headers, h), append(shards, sh)
	}
	s.headers, s.shards = headers, shards
	return nil
}
