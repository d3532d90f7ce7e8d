package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/engine"
	"sluice/engine/model"
	"sluice/engine/synth"
	"sluice/kernels"
	"sluice/moe"
)

// TestGreedy: the token handed back is the one that the logits say, and asking for it allocates nothing.
func TestGreedy(t *testing.T) {
	m := demoModel(t)
	ids := loadReference(t).Validation.IDs
	s, want := newSession(t, m, engine.Config{}), newSession(t, m, engine.Config{})
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
	c      model.Config
	passes []pretendedPass
	logits []float32
	fail   error
	open   bool
}

// pretendedPass is what a pass of one sequence said.
type pretendedPass struct {
	ids    []int32
	pos    int
	decode bool
	head   model.Head
}

func (d *pretender) Name() string { return "pretended" }
func (d *pretender) Close() error { return nil }

func (d *pretender) NewBackend(c model.Config) (model.Backend, error) {
	if d.fail != nil {
		return nil, d.fail
	}
	d.c, d.open = c, true
	return &pretendedBackend{d}, nil
}

type pretendedBackend struct{ *pretender }

// pretendedState keeps nothing.
type pretendedState struct{ model.State }

func (pretendedState) Truncate(n int) int { return n }

func (w *pretendedBackend) NewState() (model.State, error) { return pretendedState{}, nil }

func (w *pretendedBackend) Run(_ context.Context, p *model.Pass) error {
	if len(p.Spans) != 1 || p.Spans[0].From != 0 || p.Spans[0].N != len(p.IDs) || len(p.Rows) != len(p.IDs) {
		return fmt.Errorf("a session's pass of %d tokens, %d rows, spans %+v", len(p.IDs), len(p.Rows), p.Spans)
	}
	for i, r := range p.Rows {
		if r != (moe.Row{Phase: p.Rows[0].Phase, Step: p.Rows[0].Step + int32(i)}) {
			return fmt.Errorf("row %d is %+v behind %+v", i, r, p.Rows[0])
		}
	}
	w.passes = append(w.passes, pretendedPass{slices.Clone(p.IDs), int(p.Rows[0].Step), p.Decode(), p.Spans[0].Head})
	w.logits = make([]float32, w.c.Model.NVocab)
	w.logits[p.IDs[len(p.IDs)-1]+1] = 1
	w.c.Meter.AddCompute(time.Microsecond)
	w.c.Meter.AddManage(time.Nanosecond)
	return nil
}

func (w *pretendedBackend) Logits(int) []float32 { return w.logits }
func (w *pretendedBackend) Next(int) (int32, error) {
	return int32(kernels.ArgMax(w.logits)), nil
}

func (w *pretendedBackend) EachLogits(n int, visit func(int, []float32) error) error {
	for i := range n {
		if err := visit(i, w.logits); err != nil {
			return err
		}
	}
	return nil
}

func (w *pretendedBackend) Drops() model.DropCount {
	return model.DropCount{Routed: int64(len(w.passes))}
}
func (w *pretendedBackend) WeightBytes() int64 { return 7 }
func (w *pretendedBackend) Notes() []string    { return []string{"it is not there"} }
func (w *pretendedBackend) DeviceStats() model.DeviceStats {
	return model.DeviceStats{Slots: 5}
}
func (w *pretendedBackend) Close() error { w.open = false; return nil }

// TestSessionOnDevice: what a session hands to a device's backend and what it takes from it.
func TestSessionOnDevice(t *testing.T) {
	m := demoModel(t)
	d := &pretender{}
	var steps []engine.Step
	tel := engine.NewTelemetry("/", func(p *engine.Step) error {
		steps = append(steps, *p)
		return nil
	})
	s, err := engine.NewSession(m, engine.Config{Device: d, Batch: 4, Ctx: 64, Telemetry: tel})
	if err != nil {
		t.Fatal(err)
	}
	if c := d.c; c.Arm != "table" || c.KV != "f16" || c.Recorder != nil || c.Drop != nil || c.Source == nil || c.Seqs != 1 {
		t.Errorf("the backend got %+v", d.c)
	}
	g, err := s.Generate(background, []int32{1, 2, 3, 4, 5, 6}, greedySampler(t, m), engine.GenerateConfig{MaxTokens: 4, IgnoreEOS: true}, nil)
	if err != nil || !slices.Equal(g.Tokens, []int32{7, 8, 9, 10}) {
		t.Errorf("generated %v, %v", g.Tokens, err)
	}
	if _, err := s.Decode(background, 20); err != nil {
		t.Fatal(err)
	}
	want := []pretendedPass{
		{[]int32{1, 2, 3, 4}, 0, false, model.HeadNone},
		{[]int32{5, 6}, 4, false, model.HeadLogits},
		{[]int32{7}, 6, true, model.HeadNext},
		{[]int32{8}, 7, true, model.HeadNext},
		{[]int32{9}, 8, true, model.HeadNext},
		{[]int32{20}, 9, true, model.HeadLogits},
	}
	if diff := cmp.Diff(want, d.passes, cmp.AllowUnexported(pretendedPass{})); diff != "" {
		t.Errorf("passes (-want +got):\n%s", diff)
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
		t.Errorf("closed: %v, the backend is open: %v", err, d.open)
	}
	if _, on := newSession(t, m, engine.Config{}).DeviceStats(); on {
		t.Error("a session without a device has device figures")
	}
}

// TestDeviceRefusals: what no device computes is refused by its name, and a device's own refusal comes through.
func TestDeviceRefusals(t *testing.T) {
	m := demoModel(t)
	for _, c := range []struct {
		cfg  engine.Config
		want string
	}{
		{engine.Config{KV: "f32"}, `kv type "f32": on device pretended the key/value cache is f16`},
		{engine.Config{KV: "q8_0"}, `kv type "q8_0": on device pretended the key/value cache is f16`},
		{engine.Config{ExactActs: true}, "float32 activations: device pretended quantises the activations of quantised weights"},
		{engine.Config{Threads: 2}, "2 threads: device pretended computes, there is no worker team"},
		{engine.Config{Prefetch: moe.PrefetchNextLayer}, "prefetch next-layer: on device pretended experts are copied when they are demanded"},
	} {
		c.cfg.Device = &pretender{}
		_, err := engine.NewSession(m, c.cfg)
		var setting *model.SettingError
		if !errors.As(err, &setting) || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	fail := errors.New("no room")
	if _, err := engine.NewSession(m, engine.Config{Device: &pretender{fail: fail}}); !errors.Is(err, fail) {
		t.Errorf("got %v, want the device's error", err)
	}
}

// TestSlots: every tensor of the file is bound to a slot, with its bytes, and the counts are the file's.
func TestSlots(t *testing.T) {
	for _, arch := range synth.Archs() {
		g := narrow
		if arch == "olmoe" {
			g.KVHeads = 0 // as many as heads
		}
		m := synthModel(t, synth.Config{Arch: arch, Type: "q8_0", Seed: 8, Geometry: g})
		bytes := map[string]int64{}
		for i, s := range m.Slots {
			if s.ID != i || s.Bytes == 0 && !s.Optional {
				t.Errorf("%s: slot %d: %+v", arch, i, s)
			}
			n := s.Bytes
			if s.Experts() != nil {
				n *= int64(m.NExpert)
			}
			bytes[s.Name] = n
		}
		var file, dense int64
		for _, tensor := range m.File.Tensors() {
			if bytes[tensor.Name] != tensor.Size {
				t.Errorf("%s: %s: %d bytes in its slot, %d in the file", arch, tensor.Name, bytes[tensor.Name], tensor.Size)
			}
			file += tensor.Size
		}
		for il := -1; il < m.NLayer; il++ {
			dense += m.LayerDenseBytes(il)
		}
		if dense != m.DenseBytes() || dense+m.ExpertBytes() != file {
			t.Errorf("%s: dense %d by layer, %d in all, experts %d, file %d", arch, dense, m.DenseBytes(), m.ExpertBytes(), file)
		}
	}
	if err := demoModel(t).Guard(func() error { return context.Canceled }); err != context.Canceled {
		t.Errorf("guarded: %v", err)
	}
}
