package main

import (
	"encoding/json"
	"fmt"
	"io"

	"sluice/engine"
	"sluice/engine/launch"
	"sluice/moe"
	"sluice/moe/store"
)

// The JSON documents of the verbs; docs/format/json.md describes them.

type clockJSON struct {
	Tokens  int     `json:"tokens"`
	Seconds float64 `json:"seconds"`
	TPS     float64 `json:"tps"`
}

func clockOf(c engine.Clock) clockJSON { return clockJSON{c.Tokens, c.Seconds, c.TPS()} }

type cacheJSON struct {
	BudgetBytes   int64   `json:"budget_bytes"`
	ResidentBytes int64   `json:"resident_bytes"`
	Policy        string  `json:"policy,omitempty"`
	Hits          int64   `json:"hits"`
	Misses        int64   `json:"misses"`
	HitRate       float64 `json:"hit_rate"`
}

// prefetchJSON counts experts, and bytes of the budget.
type prefetchJSON struct {
	Mode        string `json:"mode"`
	MaxBytes    int64  `json:"max_bytes"`
	Experts     int64  `json:"experts"`
	Used        int64  `json:"used"`
	Wasted      int64  `json:"wasted"`
	Bytes       int64  `json:"bytes"`
	UsedBytes   int64  `json:"used_bytes"`
	WastedBytes int64  `json:"wasted_bytes"`
}

type ioJSON struct {
	Mode      string  `json:"mode"`
	BytesRead int64   `json:"bytes_read"`
	Wanted    int64   `json:"bytes_wanted"` // of the experts read, without padding
	Reads     int64   `json:"reads"`
	Seconds   float64 `json:"seconds"`
	Wait      float64 `json:"wait_seconds"`
}

type dropJSON struct {
	Frac          float64 `json:"frac"`
	Routed        int64   `json:"routed"`
	Dropped       int64   `json:"dropped"`
	Weight        float64 `json:"weight"`
	WeightDropped float64 `json:"weight_dropped"`
}

type selDumpJSON struct {
	Path    string `json:"path"`
	Records uint64 `json:"records"`
}

type traceJSON struct {
	Path string `json:"path"`
	Rows uint64 `json:"rows"`
}

// SessionJSON is exported so that a document that embeds it by pointer can be read back. It is what run, eval and bench say alike about a session.
type SessionJSON struct {
	Cache      cacheJSON     `json:"cache"`
	Prefetch   *prefetchJSON `json:"prefetch,omitempty"`
	IO         ioJSON        `json:"io"`
	Drop       dropJSON      `json:"drop"`
	SelDump    *selDumpJSON  `json:"sel_dump"`
	RouteTrace *traceJSON    `json:"route_trace"`
	CacheLoad  *loadJSON     `json:"cache_load,omitempty"`
	Memory     *memoryJSON   `json:"memory"`
	Steps      *stepsJSON    `json:"steps,omitempty"`
	Device     *deviceJSON   `json:"device,omitempty"`
}

func sessionReport(s *launch.Run, t *taps) SessionJSON {
	plan := s.Plan
	s.Settle()
	st, d := s.SourceStats(), s.Drops()
	r := SessionJSON{
		Cache: cacheJSON{BudgetBytes: plan.BudgetBytes, ResidentBytes: st.ResidentBytes, Policy: plan.Policy, Hits: st.Hits, Misses: st.Misses, HitRate: hitRate(st)},
		IO:    ioJSON{Mode: plan.IO, BytesRead: st.BytesRead, Wanted: st.BytesWanted, Reads: st.Reads, Seconds: st.ReadSeconds, Wait: st.WaitSeconds},
		Drop:  dropJSON{Frac: s.Config().Drop.Frac, Routed: d.Routed, Dropped: d.Dropped, Weight: d.Mass, WeightDropped: d.MassDropped},
	}
	if c := s.Config(); c.Prefetch != moe.PrefetchOff {
		r.Prefetch = &prefetchJSON{Mode: string(c.Prefetch), MaxBytes: c.PrefetchBytes, Experts: st.Prefetched, Used: st.PrefetchUsed, Wasted: st.PrefetchWasted,
			Bytes: st.PrefetchBytes, UsedBytes: st.PrefetchUsedBytes, WastedBytes: st.PrefetchWastedBytes}
	}
	if t != nil && s.Sel != nil {
		r.SelDump = &selDumpJSON{t.selPath, s.Sel.Records()}
	}
	if t != nil && s.Trace != nil {
		r.RouteTrace = &traceJSON{t.tracePath, s.Trace.Rows()}
	}
	if t != nil {
		r.CacheLoad = loadReport(s)
	}
	r.Memory, r.Steps, r.Device = memoryReport(), stepsReport(s, st.BytesRead), deviceReport(s)
	return r
}

func hitRate(s store.Stats) float64 {
	if s.Demanded == 0 {
		return 0
	}
	return float64(s.Hits) / float64(s.Demanded)
}

// printSession says the same in words.
func printSession(w io.Writer, s *launch.Run) {
	plan := s.Plan
	s.Settle()
	st, d := s.SourceStats(), s.Drops()
	if plan.BudgetBytes > 0 {
		fmt.Fprintf(w, "cache: %d of %d MiB used, %d hits, %d misses (%.1f %% hits), %.1f MiB read in %d reads, waited %.3f s\n",
			st.ResidentBytes>>20, plan.BudgetBytes>>20, st.Hits, st.Misses, 100*hitRate(st), float64(st.BytesRead)/(1<<20), st.Reads, st.WaitSeconds)
	}
	if c := s.Config(); c.Prefetch != moe.PrefetchOff {
		fmt.Fprintf(w, "prefetch: %s: %.1f MiB read ahead, %.1f MiB of them used (%.1f %%), %.1f MiB wasted\n",
			c.Prefetch, float64(st.PrefetchBytes)/(1<<20), float64(st.PrefetchUsedBytes)/(1<<20),
			percent(float64(st.PrefetchUsedBytes), float64(st.PrefetchBytes)), float64(st.PrefetchWastedBytes)/(1<<20))
	}
	printDevice(w, s)
	if frac := s.Config().Drop.Frac; frac > 0 {
		fmt.Fprintf(w, "drop: threshold %g of 1/k, %d of %d routed experts dropped (%.2f %%), %.2f %% of the routed weight (%.4f a token and layer)\n",
			frac, d.Dropped, d.Routed, percent(float64(d.Dropped), float64(d.Routed)), percent(d.MassDropped, d.Mass),
			d.Mass/max(1, float64(d.Routed))*float64(s.Config().NExpertUsed))
	}
	printSteps(w, s)
	printMemory(w)
}

func percent(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return 100 * a / b
}

// printJSON writes one document.
func printJSON(w io.Writer, doc any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(doc)
}
