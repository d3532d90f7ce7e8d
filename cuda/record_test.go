//go:build cuda

package cuda_test

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sluice/bench/ops"
	"sluice/cuda"
	"sluice/engine"
	"sluice/engine/model"
	"sluice/moe"
	"sluice/moe/store"
)

// TestCUDAOps: ops timed by events have the rows of a profile: every op of the pass once, in their order, without
// overlap, and the same ones in both executions; recording changes no token.
func TestCUDAOps(t *testing.T) {
	m := narrowModel(t, "qwen2moe", "q8_0")
	ids := randomIDs(m, 5, 12)
	for _, arm := range []model.Arm{"table", "host"} {
		for _, slots := range []int64{0, 3} {
			for _, prefill := range []int{0, 11} {
				if arm == "host" && prefill > 0 && !long() {
					continue
				}
				name := fmt.Sprintf("arm=%s/slots=%d/prefill=%d", arm, slots, prefill)
				d := openDevice(t, cuda.Options{CacheBytes: slots * expertBytes(m)})
				rec := model.NewRecorder(1<<12, 1)
				s := newSession(t, m, engine.Config{Device: d, Ctx: 64, Batch: 16, Arm: arm, Recorder: rec})
				want := greedy(t, m, newSession(t, m, engine.Config{Device: d, Ctx: 64, Batch: 16, Arm: arm}), ids, 5)
				if got := greedy(t, m, s, ids, 5); !slices.Equal(got, want) {
					t.Errorf("%s: tokens %v, unrecorded %v", name, got, want)
				}
				p, err := ops.Record(background, s, rec, ops.Config{Depth: 7, Prefill: prefill, Replays: 2, Seed: 1, NVocab: m.NVocab})
				if err != nil {
					t.Errorf("%s: %v", name, err)
					continue
				}
				var buf bytes.Buffer
				if err := p.Write(&buf); err != nil {
					t.Fatal(err)
				}
				if rows, err := csv.NewReader(&buf).ReadAll(); err != nil || len(rows) < len(p.Eager)+len(p.Trace) {
					t.Errorf("%s: %d rows, %v", name, len(rows), err)
				}
				if n := 16*m.NLayer + 3; len(p.Trace) != n {
					t.Errorf("%s: %d ops, want %d: %v", name, len(p.Trace), n, kinds(p.Trace))
				}
				end := int64(0)
				for _, r := range p.Trace {
					if r.Start < end || r.End < r.Start || r.Kernel < 0 {
						t.Errorf("%s: %v of layer %d from %d to %d, the one before ends at %d", name, r.Kind, r.Layer, r.Start, r.End, end)
					}
					end = r.End
					tokens := max(1, prefill)
					switch r.Kind {
					case model.OpGateUp, model.OpHidden, model.OpDown, model.OpFetch:
						if int(r.Experts) < m.NExpertUsed || r.Experts > int32(m.NExpert) || r.Tokens < int32(tokens*m.NExpertUsed) || r.Tokens > int32(tokens*m.NExpertUsed) || r.Bytes == 0 && r.Kind != model.OpHidden {
							t.Errorf("%s: %v: %+v", name, r.Kind, r.Op)
						}
					case model.OpQKV, model.OpRouter:
						if int(r.Tokens) != tokens || r.Bytes == 0 {
							t.Errorf("%s: %v: %+v", name, r.Kind, r.Op)
						}
					}
				}
			}
		}
	}
}

func kinds(rows []ops.Row) string {
	var b strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&b, "%d:%v ", r.Layer, r.Kind)
	}
	return b.String()
}

// TestCUDASteps: the parts of a step make its wall time, and the steps' counters the session's.
func TestCUDASteps(t *testing.T) {
	m := openFile(t, writeFile(t, "m.gguf", narrowData(t)))
	ids := randomIDs(m, 5, 30)
	for _, slots := range []int64{0, 3} {
		src, _, err := engine.OpenSource(m, engine.SourceConfig{BudgetBytes: store.WorkingSet(m.Layout, m.NExpertUsed), IO: "buffered"}, m.NExpertUsed)
		if err != nil {
			t.Fatal(err)
		}
		d := openDevice(t, cuda.Options{CacheBytes: slots * expertBytes(m)})
		var sum engine.Step
		steps := 0
		tel := engine.NewTelemetry("/", func(p *engine.Step) error {
			if p.Wall != p.IOWait+p.Compute+p.Manage+p.Other || p.Compute <= 0 || p.Other < -p.Wall/50 || p.IOWait < 0 || p.Manage < 0 {
				t.Errorf("step %d: %+v", p.Step, p)
			}
			steps++
			sum.Routed += p.Routed
			sum.Dropped += p.Dropped
			sum.Hits += p.Hits
			sum.Misses += p.Misses
			sum.BytesRead += p.BytesRead
			return nil
		})
		defer tel.Close()
		s := newSession(t, m, engine.Config{Device: d, Ctx: 64, Batch: 16, Telemetry: tel, Source: src, Drop: moe.Drop{Frac: 0.8, Renorm: true}})
		greedy(t, m, s, ids[:20], 8)
		st, dr := s.SourceStats(), s.Drops()
		if steps != 2+7 || sum.Routed != dr.Routed || sum.Dropped != dr.Dropped || dr.Dropped == 0 || sum.Hits != st.Hits || sum.Misses != st.Misses || sum.BytesRead != st.BytesRead {
			t.Errorf("%d steps %+v, session %+v, %+v", steps, sum, st, dr)
		}
		if dr.Routed != int64(27*m.NExpertUsed*m.NLayer) {
			t.Errorf("%d routed", dr.Routed)
		}
	}
}

// TestCUDAWeightBytes: the device counts the bytes that its passes read as the processor does.
func TestCUDAWeightBytes(t *testing.T) {
	m := narrowModel(t, "qwen2moe", "f16")
	ids := randomIDs(m, 5, 30)
	want := newSession(t, m, engine.Config{Ctx: 64, Batch: 16})
	greedy(t, m, want, ids, 6)
	for _, arm := range []model.Arm{"table", "host"} {
		for _, slots := range []int64{0, 3} {
			d := openDevice(t, cuda.Options{CacheBytes: slots * expertBytes(m)})
			s := newSession(t, m, engine.Config{Device: d, Ctx: 64, Batch: 16, Arm: arm})
			greedy(t, m, s, ids, 6)
			if s.WeightBytes() != want.WeightBytes() {
				t.Errorf("%s arm, %d slots: %d bytes, the processor %d", arm, slots, s.WeightBytes(), want.WeightBytes())
			}
		}
	}
}
