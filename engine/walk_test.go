package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/engine"
	"sluice/engine/synth"
	"sluice/kernels"
)

// TestGreedy: the token handed back is the one that the logits say, and asking for it allocates nothing.
func TestGreedy(t *testing.T) {
	m := demoModel(t)
	ids := loadReference(t).Validation.IDs
	s, want := newSession(t, m, engine.SessionConfig{}), newSession(t, m, engine.SessionConfig{})
	id := ids[0]
	for i := range 30 {
		logits, err := want.Decode(background, id)
		if err != nil {
			t.Fatal(err)
		}
		next, err := s.Greedy(background, id)
		if err != nil {
			t.Fatal(err)
		}
		if int(next) != kernels.ArgMax(logits) {
			t.Fatalf("token %d: %d, the logits say %d", i, next, kernels.ArgMax(logits))
		}
		id = next
	}
	if n := testing.AllocsPerRun(20, func() { id, _ = s.Greedy(background, id) }); n != 0 {
		t.Errorf("%v allocations a token, want 0", n)
	}
	if s.Pos() != 51 {
		t.Errorf("position %d", s.Pos())
	}
}

// pretender is a device that computes nothing: its next token is the last one plus one.
type pretender struct {
	c      engine.WalkConfig
	passes []engine.Pass
	logits []float32
	fail   error
	open   bool
}

func (d *pretender) Name() string { return "pretended" }
func (d *pretender) Close() error { return nil }

func (d *pretender) NewWalk(c engine.WalkConfig) (engine.Walk, error) {
	if d.fail != nil {
		return nil, d.fail
	}
	d.c, d.open = c, true
	return &pretendedWalk{d}, nil
}

type pretendedWalk struct{ *pretender }

func (w *pretendedWalk) Run(_ context.Context, p engine.Pass) error {
	p.IDs = slices.Clone(p.IDs)
	w.passes = append(w.passes, p)
	w.logits = make([]float32, w.c.Model.NVocab)
	w.logits[p.IDs[len(p.IDs)-1]+1] = 1
	w.c.Session.Telemetry.AddCompute(time.Microsecond)
	w.c.Session.Telemetry.AddManage(time.Nanosecond)
	return nil
}

func (w *pretendedWalk) Logits() []float32 { return w.logits }
func (w *pretendedWalk) Next() (int32, error) {
	return int32(kernels.ArgMax(w.logits)), nil
}

func (w *pretendedWalk) EachLogits(n int, visit func(int, []float32) error) error {
	for i := range n {
		if err := visit(i, w.logits); err != nil {
			return err
		}
	}
	return nil
}

func (w *pretendedWalk) Drops() engine.DropCount {
	return engine.DropCount{Routed: int64(len(w.passes))}
}
func (w *pretendedWalk) WeightBytes() int64 { return 7 }
func (w *pretendedWalk) Notes() []string    { return []string{"it is not there"} }
func (w *pretendedWalk) DeviceStats() engine.DeviceStats {
	return engine.DeviceStats{Slots: 5}
}
func (w *pretendedWalk) Close() error { w.open = false; return nil }

// TestSessionOnDevice: what a session hands to a device's walk and what it takes from it.
func TestSessionOnDevice(t *testing.T) {
	m := demoModel(t)
	d := &pretender{}
	var steps []engine.Step
	tel := engine.NewTelemetry("/", func(p *engine.Step) error {
		steps = append(steps, *p)
		return nil
	})
	s, err := m.NewSession(engine.SessionConfig{Device: d, Batch: 4, Ctx: 64, Telemetry: tel})
	if err != nil {
		t.Fatal(err)
	}
	if c := d.c.Session; c.Arm != "table" || c.KV != "f16" || c.Recorder != nil || d.c.Drop != nil || d.c.Source == nil {
		t.Errorf("the walk got %+v", d.c)
	}
	g, err := s.Generate(background, []int32{1, 2, 3, 4, 5, 6}, greedySampler(t, m), engine.GenerateConfig{MaxTokens: 4, IgnoreEOS: true}, nil)
	if err != nil || !slices.Equal(g.Tokens, []int32{7, 8, 9, 10}) {
		t.Errorf("generated %v, %v", g.Tokens, err)
	}
	if _, err := s.Decode(background, 20); err != nil {
		t.Fatal(err)
	}
	want := []engine.Pass{
		{IDs: []int32{1, 2, 3, 4}},
		{IDs: []int32{5, 6}, Pos: 4, Head: engine.HeadLogits},
		{IDs: []int32{7}, Pos: 6, Decode: true, Head: engine.HeadNext},
		{IDs: []int32{8}, Pos: 7, Decode: true, Head: engine.HeadNext},
		{IDs: []int32{9}, Pos: 8, Decode: true, Head: engine.HeadNext},
		{IDs: []int32{20}, Pos: 9, Decode: true, Head: engine.HeadLogits},
	}
	if !slices.EqualFunc(d.passes, want, func(a, b engine.Pass) bool {
		ids := slices.Equal(a.IDs, b.IDs)
		a.IDs, b.IDs = nil, nil
		return ids && a.Pos == b.Pos && a.Decode == b.Decode && a.Head == b.Head && a.Turn == b.Turn
	}) {
		t.Errorf("passes %+v, want %+v", d.passes, want)
	}
	for i, p := range steps {
		if p.Compute != time.Microsecond || p.Manage != time.Nanosecond || p.Wall != p.IOWait+p.Compute+p.Manage+p.Other || p.Routed != 1 {
			t.Errorf("step %d: %+v", i, p)
		}
	}
	if st, on := s.DeviceStats(); !on || st.Slots != 5 || s.WeightBytes() != 7 || len(s.Notes()) != 1 || len(steps) != 6 {
		t.Errorf("%+v, %v, %d bytes, %q, %d steps", st, on, s.WeightBytes(), s.Notes(), len(steps))
	}
	if err := s.Close(); err != nil || d.open {
		t.Errorf("closed: %v, the walk is open: %v", err, d.open)
	}
	if _, on := newSession(t, m, engine.SessionConfig{}).DeviceStats(); on {
		t.Error("a session without a device has device figures")
	}
}

// TestDeviceRefusals: what no device computes is refused by its name, and a device's own refusal comes through.
func TestDeviceRefusals(t *testing.T) {
	m := demoModel(t)
	for _, c := range []struct {
		cfg  engine.SessionConfig
		want string
	}{
		{engine.SessionConfig{KV: "f32"}, `kv type "f32": on device pretended the key/value cache is f16`},
		{engine.SessionConfig{KV: "q8_0"}, `kv type "q8_0": on device pretended the key/value cache is f16`},
		{engine.SessionConfig{ExactActs: true}, "float32 activations: device pretended quantises the activations of quantised weights"},
		{engine.SessionConfig{Threads: 2}, "2 threads: device pretended computes, there is no worker team"},
		{engine.SessionConfig{Prefetch: engine.PrefetchNextLayer}, "prefetch next-layer: on device pretended experts are copied when they are demanded"},
	} {
		c.cfg.Device = &pretender{}
		_, err := m.NewSession(c.cfg)
		var setting *engine.SettingError
		if !errors.As(err, &setting) || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	fail := errors.New("no room")
	if _, err := m.NewSession(engine.SessionConfig{Device: &pretender{fail: fail}}); !errors.Is(err, fail) {
		t.Errorf("got %v, want the device's error", err)
	}
}

// TestWeightView: every tensor of the file is in the view under its name, and nothing else.
func TestWeightView(t *testing.T) {
	for _, arch := range synth.Archs() {
		g := narrow
		if arch == "olmoe" {
			g.KVHeads = 0 // as many as heads
		}
		m := synthModel(t, synth.Config{Arch: arch, Type: "q8_0", Seed: 8, Geometry: g})
		v := m.Weights()
		names := map[string]bool{v.TokEmbd.Name: true, v.Output.Name: true, "output_norm.weight": v.OutNorm != nil}
		for i := range v.Layers {
			ly := &v.Layers[i]
			for _, w := range []engine.Tensor{ly.Wq, ly.Wk, ly.Wv, ly.Wo, ly.Router, ly.SharedGateW, ly.SharedUp, ly.SharedDown} {
				if w.Name != "" && len(w.Data) != w.Rows*w.Type.RowBytes(w.Cols) {
					t.Errorf("%s: %s: %d bytes", arch, w.Name, len(w.Data))
				}
				names[w.Name] = true
			}
			for _, w := range []engine.ExpertTensor{ly.Gate, ly.Up, ly.Down} {
				names[w.Name] = true
			}
		}
		for _, tensor := range m.File.Tensors() {
			if len(tensor.Dims) > 1 && !names[tensor.Name] && !strings.Contains(tensor.Name, "norm") {
				t.Errorf("%s: %s is not in the view", arch, tensor.Name)
			}
		}
	}
	if err := demoModel(t).Guard(func() error { return context.Canceled }); err != context.Canceled {
		t.Errorf("guarded: %v", err)
	}
}
