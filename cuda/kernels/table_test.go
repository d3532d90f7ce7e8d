package kernels_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	dev "sluice/cuda/kernels"
	"sluice/moe"
)

// tableArrays are a table's arrays, its weights as bits.
type tableArrays struct {
	offsets, token, weight, expertOf, entryOf, tiles []int32
}

// wantTable works a table out from the host arm's, for calls of rows rows.
func wantTable(t dev.Table, host *moe.Table, rows int) tableArrays {
	a := tableArrays{offsets: host.Offsets, token: host.Token}
	for _, w := range host.Weight {
		a.weight = append(a.weight, int32(math.Float32bits(w)))
	}
	entries := make([][]int32, rows)
	for e := range t.NExpert {
		lo, hi := host.Offsets[e], host.Offsets[e+1]
		for i := lo; i < hi; i++ {
			a.expertOf = append(a.expertOf, int32(e))
			entries[host.Token[i]] = append(entries[host.Token[i]], i)
		}
		for i := lo; i < hi; i += dev.TileCols {
			a.tiles = append(a.tiles, int32(e), i, min(dev.TileCols, hi-i))
		}
	}
	for len(a.expertOf) < rows*t.K {
		a.expertOf = append(a.expertOf, -1)
	}
	for _, row := range entries {
		for j := range t.K {
			if j < len(row) {
				a.entryOf = append(a.entryOf, row[j])
			} else {
				a.entryOf = append(a.entryOf, -1)
			}
		}
	}
	return a
}

// readTable reads the arrays out of the memory at t.Offsets.
func readTable(t dev.Table, b []byte, rows int) tableArrays {
	get := func(p dev.Ptr, n int) []int32 {
		out := make([]int32, n)
		for i := range out {
			out[i] = int32(binary.LittleEndian.Uint32(b[int(p-t.Offsets)+4*i:]))
		}
		return out
	}
	a := tableArrays{offsets: get(t.Offsets, t.NExpert+1), expertOf: get(t.ExpertOf, rows*t.K), entryOf: get(t.EntryOf, rows*t.K)}
	kept := int(a.offsets[t.NExpert])
	a.token, a.weight = get(t.Token, kept), get(t.Weight, kept)
	a.tiles = get(t.Tiles, 3*int(get(t.NTiles, 1)[0]))
	return a
}

// diff names the first array that differs, or "".
func (a tableArrays) diff(b tableArrays) string {
	switch {
	case !slices.Equal(a.offsets, b.offsets):
		return "offsets"
	case !slices.Equal(a.token, b.token):
		return "token"
	case !slices.Equal(a.weight, b.weight):
		return "weight"
	case !slices.Equal(a.expertOf, b.expertOf):
		return "expertOf"
	case !slices.Equal(a.entryOf, b.entryOf):
		return "entryOf"
	case !slices.Equal(a.tiles, b.tiles):
		return "tiles"
	}
	return ""
}

// TestTableLayout holds every array to its own bytes and to the end of the table.
func TestTableLayout(t *testing.T) {
	for _, s := range []struct{ n, k, rows int }{{1, 1, 1}, {8, 2, 1}, {128, 8, 1}, {128, 8, 512}, {512, 10, 512}, {512, 32, 4096}, {4096, 4096, 3}} {
		const base = 1 << 40
		tab := dev.NewTable(base, s.n, s.k, s.rows)
		slots := int64(s.rows) * int64(s.k)
		type array struct {
			at    dev.Ptr
			bytes int64
		}
		arrays := []array{{tab.Offsets, 4 * int64(s.n+1)}, {tab.Token, 4 * slots}, {tab.Weight, 4 * slots}, {tab.ExpertOf, 4 * slots},
			{tab.EntryOf, 4 * slots}, {tab.Tiles, 12 * int64(tab.MaxTiles())}, {tab.NTiles, 4}, {tab.Dropped, slots},
			{tab.Sums, dev.SumsBytes}, {tab.Err, dev.RouteErrorBytes}}
		if tab.Bits != 0 {
			arrays = append(arrays, array{tab.Bits, 4 * int64(s.n) * int64((s.rows+31)/32)})
		}
		slices.SortFunc(arrays, func(a, b array) int { return int(int64(a.at) - int64(b.at)) })
		end := dev.Ptr(base)
		for _, a := range arrays {
			if a.at < end || a.at%256 != 0 {
				t.Errorf("%+v: array at %#x, the one before ends at %#x", s, a.at, end)
			}
			end = a.at.At(a.bytes)
		}
		if total := dev.TableBytes(s.n, s.k, s.rows); int64(end-base) > total {
			t.Errorf("%+v: arrays end at %d, the table has %d bytes", s, end-base, total)
		}
	}
}

// TestTableEncode encodes tables of the host arm and reads them back.
func TestTableEncode(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		r := randomRouter(rng, 40)
		c := randomCall(rng, &r, 1+rng.IntN(70))
		tab := dev.NewTable(0, r.NExpert, r.NUsed, c.T+rng.IntN(3))
		if moe.NewHostArm(r.NExpert, r.NUsed, c.T).Route(c) != nil {
			continue
		}
		b := make([]byte, tab.EncodedBytes())
		for i := range b {
			b[i] = 0x5a
		}
		tab.Encode(b, c.Table, c.T)
		if d := wantTable(tab, c.Table, c.T).diff(readTable(tab, b, c.T)); d != "" {
			t.Fatalf("%+v, %d rows: %s", r, c.T, d)
		}
	}
}

// TestTilesOf routes calls that have the most tiles: one entry over a full tile for as many experts as possible.
func TestTilesOf(t *testing.T) {
	for _, s := range []struct{ n, k, rows, want int }{{1, 1, 1, 1}, {4, 1, 3, 3}, {4, 2, 1, 2}, {2, 1, 18, 4}, {3, 3, 9, 6}, {8, 2, 512, 135}} {
		if got := dev.NewTable(0, s.n, s.k, s.rows).TilesOf(s.rows); got != s.want {
			t.Errorf("%d experts, %d x %d slots: %d tiles, want %d", s.n, s.rows, s.k, got, s.want)
		}
	}
}

func TestDecodeRouteError(t *testing.T) {
	word := func(layer, row uint64, expert, kind uint64) uint64 {
		return (1<<44-1-(layer<<32|row))<<20 | (expert+1)<<4 | kind
	}
	tests := []struct {
		word uint64
		want string
	}{
		{word(0, 0, 0, 1), "moe: layer 0: token at position 7: router logit of expert 0 is NaN, want a number below +Inf"},
		{word(3, 511, 4095, 2), "moe: layer 3: token at position 518: router logit of expert 4095 is +Inf, want a number below +Inf"},
		{word(4095, 1<<31-1, math.MaxUint64, 3), "moe: layer 4095: token at position 2147483654: every router logit is -Inf"},
	}
	for _, tt := range tests {
		if uint32(tt.word) == 0 || tt.word>>32 == 0 {
			t.Errorf("%#x: a half is 0", tt.word)
		}
		if e := dev.DecodeRouteError(tt.word, 7); e == nil || e.Error() != tt.want {
			t.Errorf("%#x: %v, want %q", tt.word, e, tt.want)
		}
	}
	if e := dev.DecodeRouteError(0, 7); e != nil {
		t.Errorf("0: %v", e)
	}
	if word(0, 1, 9, 1) <= word(0, 2, 0, 1) || word(0, 9, 0, 1) <= word(1, 0, 0, 1) {
		t.Error("the first row of the first layer is not the greatest word")
	}
}

func TestDecodePost(t *testing.T) {
	message := func(words ...uint32) []byte {
		b := make([]byte, dev.PostBytes(8))
		for i, w := range words {
			binary.LittleEndian.PutUint32(b[4*i:], w)
		}
		return b
	}
	if ids, err := dev.DecodePost(message(9, 3, 0, 0, 0, 5, 7), 8, 0, []int32{1}); err != nil || !slices.Equal(ids, []int32{1, 0, 5, 7}) {
		t.Errorf("ids %v, error %v", ids, err)
	}
	if seq := dev.PostSeq(message(9)); seq != 9 {
		t.Errorf("sequence number %d", seq)
	}
	bad := []struct {
		b    []byte
		want string
	}{
		{message(9, 9), "9 experts, want up to 8"},
		{message(9, math.MaxUint32), "4294967295 experts"},
		{message(9, 2, 0, 0, 5, 5), "expert 5 after 5"},
		{message(9, 1, 0, 0, 8), "expert 8 after -1"},
		{message(9, 1, 0, 0, math.MaxUint32), "expert -1 after -1"},
		{message(9, 1, 0x00000011, 0xffffff00), "moe: layer 0: token at position"},
	}
	for _, tt := range bad {
		if _, err := dev.DecodePost(tt.b, 8, 0, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error %v, want %q", err, tt.want)
		}
	}
}

func TestTapDecode(t *testing.T) {
	tap := dev.Tap{Layers: 3, K: 2, MaxT: 2, Base: 1024}
	if tap.IDs(1) != 1024+16 || tap.Weights(0) != 1024+48 || tap.Weights(2) != 1024+80 || tap.Bytes() != 96 {
		t.Errorf("ids %d, weights %d and %d, bytes %d", tap.IDs(1), tap.Weights(0), tap.Weights(2), tap.Bytes())
	}
	b := make([]byte, 96)
	for i := range 12 {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(i))
		binary.LittleEndian.PutUint32(b[48+4*i:], math.Float32bits(float32(i)/8))
	}
	expert, weight := make([]int32, 2), make([]float32, 2)
	if err := tap.Decode(b, 2, 1, 10, expert, weight); err != nil || expert[1] != 9 || weight[1] != 1.125 {
		t.Errorf("%v %v, error %v", expert, weight, err)
	}
	if err := tap.Decode(b, 2, 1, 9, expert, weight); err == nil || !strings.Contains(err.Error(), "layer 2: row 0 slot 1: expert 9, want 0 to 8") {
		t.Errorf("error %v", err)
	}
}

// TestRoutable has the limits of a row's shared memory.
func TestRoutable(t *testing.T) {
	for _, s := range []struct {
		n, k, groups int
		ok           bool
	}{{512, 32, 0, true}, {512, 512, 256, true}, {moe.MaxExperts, 3968, 1, true}, {moe.MaxExperts, 3969, 1, false}, {moe.MaxExperts, 32, 1024, true},
		{moe.MaxExperts, 32, 4096, false}} {
		r := &moe.Router{NExpert: s.n, NUsed: s.k, Scale: 1, NGroup: s.groups, NGroupUsed: min(s.groups, s.n)}
		if err := r.Validate(); s.groups > 1 && err != nil {
			t.Fatal(err)
		}
		if err := dev.Routable(r); (err == nil) != s.ok {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
