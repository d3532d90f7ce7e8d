package dump

import (
	"strconv"
	"strings"
)

// RunFacts are what recordings say of the run that they are of: the selection dump's sidecar as Config, the route trace's
// preamble as Preamble. A field that is empty, or 0 where 0 says nothing, is left out.
type RunFacts struct {
	Version  string
	Arm      string
	Threads  int    // of the worker team; on a device there is none
	Device   string // what computed
	OnDevice bool   // it is not the processor

	CacheBytes    int64
	CachePolicy   string
	IO            string
	SlotBytes     []int64 // of an expert in the cache's budget, by layer
	DropFrac      float64
	DropRenorm    bool
	DropInPrefill bool
	Prefetch      string // "": nothing is read ahead
	PrefetchBytes int64
	CacheLoad     string // name of the cache state that the run began with
	StateSum      string // its checksum, in hexadecimal
	TensorTable   string // hash of the model's tensor table, in hexadecimal
}

// The keys of the facts that replays read, in a trace's preamble and in a sidecar.
const (
	FactDevice        = "device"     // what computed, and held experts of its own; absent in a trace: the processor
	FactSlotBytes     = "slot_bytes" // what one expert of each layer takes of the cache: bytes by layer, 0 for a dense one
	FactCacheBytes    = "cache_bytes"
	FactCachePolicy   = "cache_policy"
	FactDropFrac      = "drop_frac"
	FactDropRenorm    = "drop_renorm"
	FactDropInPrefill = "drop_in_prefill"
	FactPrefetch      = "prefetch"
	FactPrefetchBytes = "prefetch_bytes"
	FactCacheLoad     = "cache_load"
	FactStateSum      = "cache_load_sum"
	FactTensorTable   = "tensor_table"
)

// Config is the facts as the sidecar of a selection dump has them.
func (f *RunFacts) Config() map[string]string {
	m := map[string]string{"version": f.Version, "arm": f.Arm, "threads": strconv.Itoa(f.Threads), "io": f.IO, FactDevice: f.Device}
	if f.OnDevice {
		delete(m, "threads")
	}
	for _, kv := range f.shared() {
		m[kv[0]] = kv[1]
	}
	return m
}

// Preamble is the facts as a route trace has them, in its order.
func (f *RunFacts) Preamble() (lines [][2]string) {
	if f.OnDevice {
		lines = append(lines, [2]string{FactDevice, f.Device})
	}
	slots := make([]string, len(f.SlotBytes))
	for i, n := range f.SlotBytes {
		slots[i] = strconv.FormatInt(n, 10)
	}
	return append(append(lines, [2]string{FactSlotBytes, strings.Join(slots, ",")}), f.shared()...)
}

// shared are the facts that both have.
func (f *RunFacts) shared() (kv [][2]string) {
	add := func(key, value string) {
		if value != "" {
			kv = append(kv, [2]string{key, value})
		}
	}
	add(FactCacheBytes, strconv.FormatInt(f.CacheBytes, 10))
	add(FactCachePolicy, f.CachePolicy)
	add(FactDropFrac, strconv.FormatFloat(f.DropFrac, 'g', -1, 64))
	add(FactDropRenorm, strconv.FormatBool(f.DropRenorm))
	add(FactDropInPrefill, strconv.FormatBool(f.DropInPrefill))
	if f.Prefetch != "" {
		add(FactPrefetch, f.Prefetch)
		add(FactPrefetchBytes, strconv.FormatInt(f.PrefetchBytes, 10))
	}
	add(FactCacheLoad, f.CacheLoad)
	add(FactStateSum, f.StateSum)
	add(FactTensorTable, f.TensorTable)
	return kv
}

// Fact is the value of one of the keys, or of any other line of the preamble; "" where there is none.
func (m *TraceMeta) Fact(key string) string {
	for _, kv := range m.Extra {
		if kv[0] == key {
			return kv[1]
		}
	}
	return ""
}
