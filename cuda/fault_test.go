//go:build cuda

package cuda_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/cuda"
	"sluice/cuda/driver"
	"sluice/engine"
	"sluice/engine/gguf"
	"sluice/engine/model"
	"sluice/engine/synth"
	"sluice/kernels"
	"sluice/moe"
	"sluice/moe/store"
)

// child runs the test again as a process of its own with more environment, and reports whether this one is it.
func child(t *testing.T, env ...string) bool {
	t.Helper()
	const key = "SLUICE_CUDA_TEST_CHILD"
	if os.Getenv(key) == t.Name() {
		return true
	}
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(append(os.Environ(), key+"="+t.Name()), env...)
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// spoiled is a synthetic model in which one float16 weight is another.
func spoiled(t testing.TB, arch, name string, at int, v float32) *model.Model {
	t.Helper()
	g := narrow
	if arch == "qwen2moe" {
		g = sharedNarrow
	}
	data := build(t, synth.Config{Arch: arch, Type: "f16", Seed: 4, Geometry: g})
	f, err := gguf.Parse("m.gguf", data)
	if err != nil {
		t.Fatal(err)
	}
	w, ok := f.Tensor(name)
	if !ok {
		t.Fatalf("no tensor %s", name)
	}
	switch w.Type {
	case kernels.F16:
		binary.LittleEndian.PutUint16(data[w.Offset+2*int64(at):], kernels.F32ToF16(v))
	case kernels.F32:
		binary.LittleEndian.PutUint32(data[w.Offset+4*int64(at):], math.Float32bits(v))
	default:
		t.Fatalf("%s is %s", name, w.Type)
	}
	return parseModel(t, "m.gguf", data)
}

// places are where experts may be, as far as an error in them goes.
var places = []struct {
	name  string
	arm   model.Arm
	slots int
	drop  float64
}{{"resident", "table", 0, 0}, {"resident, host arm", "host", 0, 0}, {"slots", "table", 3, 0}, {"slots, host arm", "host", 3, 0}}

// TestCUDABroken: a weight that is not finite ends the run with the error that the processor gives, and what was routed
// before it is recorded. The session goes on.
func TestCUDABroken(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		arch, tensor string
		value        float32
	}{
		{"qwen3moe", "token_embd.weight", nan},
		{"qwen3moe", "blk.1.ffn_gate_inp.weight", nan},
		{"qwen3moe", "blk.1.ffn_down_exps.weight", nan},
		{"qwen2moe", "blk.2.ffn_gate_exps.weight", nan},
		{"qwen2moe", "blk.1.attn_k.bias", nan},
		{"qwen2moe", "blk.0.attn_output.weight", nan},
		{"qwen2moe", "blk.1.ffn_down_shexp.weight", nan},
		{"qwen2moe", "output.weight", nan},
		{"qwen2moe", "output.weight", float32(math.Inf(1))},
		{"qwen2moe", "output.weight", float32(math.Inf(-1))},
	} {
		m := spoiled(t, c.arch, c.tensor, 5, c.value)
		ids := []int32{7, 2, 0, 9, 1, 3, 5, 0, 4, 8, 6, 2, 9}
		run := func(cfg engine.Config) (error, []byte) {
			dir := t.TempDir()
			cfg.Ctx, cfg.Batch = 64, 8
			cfg.SelDump, _ = armTaps(t, m, dir)
			s := newSession(t, m, cfg)
			_, err := s.Generate(background, ids, greedySampler(t, m), engine.GenerateConfig{MaxTokens: 6, IgnoreEOS: true}, nil)
			// A second try from the beginning fails alike.
			s.Reset()
			_, again := s.Generate(background, ids, greedySampler(t, m), engine.GenerateConfig{MaxTokens: 6, IgnoreEOS: true}, nil)
			if fmt.Sprint(again) != fmt.Sprint(err) {
				t.Errorf("%s: %v, the second time %v", c.tensor, err, again)
			}
			if err := cfg.SelDump.Close(); err != nil {
				t.Fatal(err)
			}
			return err, readFile(t, dir+"/sel.bin")
		}
		want, wantDump := run(engine.Config{})
		if want == nil {
			if c.value != c.value {
				t.Fatalf("%s: the processor finds nothing wrong", c.tensor)
			}
			continue // an infinite weight made no greatest logit
		}
		text := strings.Replace(want.Error(), "engine: ", "cuda: ", 1)
		if errors.Is(want, model.ErrNotFinite) {
			text = want.Error()
		}
		for i, p := range places {
			if !long() && i > 0 && c.arch == "qwen2moe" && !strings.Contains(c.tensor, "exps") {
				continue
			}
			d := openDevice(t, cuda.Options{CacheBytes: int64(p.slots) * expertBytes(m)})
			got, dump := run(engine.Config{Device: d, Arm: p.arm})
			if got == nil || got.Error() != text {
				t.Errorf("%s, %s: got %v, want %s", c.tensor, p.name, got, text)
			}
			var logit, wantLogit *moe.LogitError
			if errors.As(want, &wantLogit) && (!errors.As(got, &logit) || logit.Layer != wantLogit.Layer || logit.Position != wantLogit.Position || logit.Expert != wantLogit.Expert) {
				t.Errorf("%s, %s: got %+v, want %+v", c.tensor, p.name, logit, wantLogit)
			}
			if len(dump) != len(wantDump) {
				t.Errorf("%s, %s: a dump of %d bytes, want %d", c.tensor, p.name, len(dump), len(wantDump))
			}
		}
	}
}

// TestCUDARefusesTypes: a tensor that no device kernel takes is named when the session is opened.
func TestCUDARefusesTypes(t *testing.T) {
	d := openDevice(t, cuda.Options{})
	for typ, want := range map[string]string{"q5_1": "Q5_1", "iq4_nl": "IQ4_NL", "q4_1": "Q4_1"} {
		m := narrowModel(t, "qwen3moe", typ)
		_, err := engine.NewSession(m, engine.Config{Device: d})
		if err == nil || !strings.Contains(err.Error(), "has no device kernel (have F32, F16,") || !strings.Contains(err.Error(), "type "+want) ||
			!strings.Contains(err.Error(), `.weight"`) {
			t.Errorf("%s: %v", typ, err)
		}
	}
	g := narrow
	g.HeadDim = 36
	_, err := engine.NewSession(synthModel(t, synth.Config{Arch: "qwen3moe", Type: "f16", Seed: 1, Geometry: g}), engine.Config{Device: d})
	if err == nil || !strings.Contains(err.Error(), "rows of 144, want a multiple of 32") && !strings.Contains(err.Error(), "heads of 36 values") {
		t.Errorf("heads of 36: %v", err)
	}
	if _, err := cuda.New(cuda.Options{Ordinal: 700}); err == nil || !strings.Contains(err.Error(), "device 700") {
		t.Errorf("device 700: %v", err)
	}
	var setting *model.SettingError
	m := narrowModel(t, "qwen3moe", "f16")
	small := openDevice(t, cuda.Options{CacheBytes: 2*expertBytes(m) + 100})
	if _, err := engine.NewSession(m, engine.Config{Device: small}); !errors.As(err, &setting) || !strings.Contains(err.Error(), "need 3 slots of 12.0 KiB, together 36.0 KiB") {
		t.Errorf("two slots: %v", err)
	}
}

// TestCUDAOtherDevices: what a machine may answer instead of a device that fits.
func TestCUDAOtherDevices(t *testing.T) {
	if env := os.Getenv("SLUICE_CUDA_TEST_PRETEND"); env == "" {
		emulatedOnly(t)
		for _, e := range []string{"SLUICE_EMU_DRIVER=10020", "SLUICE_EMU_ARCH=sm_35"} {
			child(t, e, "SLUICE_CUDA_TEST_PRETEND="+e)
		}
		return
	}
	_, err := cuda.New(cuda.Options{})
	var old *driver.DriverError
	var arch *driver.ArchError
	if !errors.As(err, &old) && !errors.As(err, &arch) {
		t.Errorf("got %v", err)
	}
	t.Log(err)
}

// TestCUDAOutOfMemory runs on a small device: what does not fit is said with its arithmetic, a cache nobody asked for
// gets smaller, one that was asked for is refused.
func TestCUDAOutOfMemory(t *testing.T) {
	emulatedOnly(t)
	if !child(t, "SLUICE_EMU_MB=48") {
		return
	}
	g := synth.Geometry{Layers: 2, Embd: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Experts: 24, Used: 2, FF: 1024, Context: 65536}
	m := synthModel(t, synth.Config{Arch: "qwen3moe", Type: "f16", Seed: 1, Geometry: g})
	ids := randomIDs(m, 1, 12)
	all := expertBytes(m) * int64(m.NExpert*m.NLayer)
	t.Logf("experts of %d MiB", all>>20)
	var full *driver.NoMemoryError
	d := openDevice(t, cuda.Options{CacheBytes: all})
	if _, err := engine.NewSession(m, engine.Config{Device: d, Ctx: 64, Batch: 8}); !errors.As(err, &full) || full.Asked == 0 || full.Asked < full.Free {
		t.Errorf("asked for all experts: %v", err)
	} else {
		t.Log(err)
	}
	if _, err := engine.NewSession(m, engine.Config{Device: d, Ctx: 65536, Batch: 8}); !errors.As(err, &full) {
		t.Errorf("a context that does not fit: %v", err)
	} else {
		t.Log(err)
	}
	auto := openDevice(t, cuda.Options{})
	s := newSession(t, m, engine.Config{Device: auto, Ctx: 64, Batch: 8})
	st, _ := s.DeviceStats()
	if st.Resident || st.Slots < 2 || st.BudgetBytes >= all {
		t.Errorf("of its own choice: %+v", st)
	}
	t.Log(s.Notes())
	got := greedy(t, m, s, ids, 4)
	// A longer context takes the room from the experts, once nobody uses them.
	if _, err := engine.NewSession(m, engine.Config{Device: auto, Ctx: 24576, Batch: 8}); !errors.As(err, &full) {
		t.Errorf("a second session that does not fit: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = newSession(t, m, engine.Config{Device: auto, Ctx: 24576, Batch: 8})
	less, _ := s.DeviceStats()
	if less.Slots >= st.Slots {
		t.Errorf("with a longer context %+v, before %+v", less, st)
	}
	t.Log(s.Notes())
	if again := greedy(t, m, s, ids, 4); !slices.Equal(again, got) {
		t.Errorf("tokens %v, before %v", again, got)
	}
}

// brokenSource does something at one of its experts.
type brokenSource struct {
	store.Source
	left int
	at   func() error
}

func (b *brokenSource) Next(ctx context.Context) (int, store.Expert, error) {
	i, x, err := b.Source.Next(ctx)
	if b.left--; b.left == 0 && err == nil {
		err = b.at()
	}
	return i, x, err
}

func (b *brokenSource) Expert(i int) (store.Expert, error) {
	x, err := b.Source.Expert(i)
	if b.left--; b.left == 0 && err == nil {
		err = b.at()
	}
	return x, err
}

// TestCUDAInterrupted: a source that fails, and a context that is done, in the middle of a token or of a prompt end it;
// nothing is left waiting, and the session goes on with the tokens of one that was never interrupted.
func TestCUDAInterrupted(t *testing.T) {
	m := narrowModel(t, "qwen2moe", "f16")
	ids := randomIDs(m, 2, 24)
	fails := errors.New("the disk is gone")
	for _, arm := range []model.Arm{"table", "host"} {
		for _, host := range []int{0, 4} {
			d := openDevice(t, cuda.Options{CacheBytes: 3 * expertBytes(m)})
			open := func() (*engine.Session, *brokenSource, func(when string)) {
				sc := engine.SourceConfig{}
				if host > 0 {
					sc = engine.SourceConfig{BudgetBytes: store.WorkingSet(m.Layout, host), IO: "buffered"}
				}
				src, _, err := engine.OpenSource(m, sc, m.NExpertUsed)
				if err != nil {
					t.Fatal(err)
				}
				b := &brokenSource{Source: src}
				cfg := engine.Config{Device: d, Ctx: 64, Batch: 9, Arm: arm, Source: b}
				cfg.SelDump, cfg.Trace = armTaps(t, m, t.TempDir())
				s := newSession(t, m, cfg)
				return s, b, func(when string) { // what is counted is what is recorded
					t.Helper()
					d, records := s.Drops(), int64(cfg.SelDump.Records())
					if d.Routed != records*int64(m.NExpertUsed) || (d.Mass > 0) != (d.Routed > 0) {
						t.Errorf("%s arm, host cache %d, %s: counted %+v, the dump has %d records of %d", arm, host, when, d, records, m.NExpertUsed)
					}
					if rows := int64(cfg.Trace.Rows()); arm == "table" && rows != d.Routed {
						t.Errorf("host cache %d, %s: counted %+v, the trace has %d rows", host, when, d, rows)
					}
				}
			}
			s, _, _ := open()
			want := greedy(t, m, s, ids, 8)
			s, b, counts := open()
			places := []int{1, 11}
			if long() {
				places = []int{1, 2, 5, 11, 17}
			}
			for _, at := range places {
				for _, name := range []string{"fails", "cancel"} {
					ctx, cancel := context.WithCancel(background)
					f := func() error { return fails }
					if name == "cancel" {
						f = func() error { cancel(); return nil }
					}
					s.Reset()
					b.left, b.at = at, f
					_, err := s.Prefill(ctx, ids)
					if name == "fails" && (!errors.Is(err, fails) || !strings.Contains(err.Error(), "cuda: layer ")) || name == "cancel" && !errors.Is(err, context.Canceled) {
						t.Errorf("%s arm, host cache %d, %s at %d of a prompt: %v", arm, host, name, at, err)
					}
					counts(fmt.Sprintf("%s at %d of a prompt", name, at))
					if s.Pos()%9 != 0 {
						t.Errorf("position %d after a prompt that ended early", s.Pos())
					}
					s.Reset()
					if _, err := s.Prefill(background, ids); err != nil {
						t.Fatal(err)
					}
					ctx, cancel = context.WithCancel(background)
					b.left = min(at, 5)
					pos := s.Pos()
					if _, err = s.Decode(ctx, want[0]); err == nil || s.Pos() != pos {
						t.Errorf("%s arm, host cache %d, %s at %d of a token: %v, position %d", arm, host, name, b.left, err, s.Pos())
					}
					counts(fmt.Sprintf("%s at %d of a token", name, b.left))
					b.left = 0
					if got := greedy(t, m, s, want[:1], 7); !slices.Equal(got, want[1:]) {
						t.Errorf("%s arm, host cache %d, after %s: %v, want %v", arm, host, name, got, want[1:])
					}
					cancel()
				}
			}
		}
	}
}

// TestCUDAShortened cuts the file from whose mapping experts are copied: an error, and a process that lives.
func TestCUDAShortened(t *testing.T) {
	if !child(t) {
		return
	}
	data := build(t, synth.Config{Arch: "qwen3moe", Type: "f16", Seed: 4, Geometry: narrow})
	path := writeFile(t, "m.gguf", data)
	for _, slots := range []int64{3, 18} {
		m := openFile(t, path)
		d := openDevice(t, cuda.Options{CacheBytes: slots * expertBytes(m)})
		s := newSession(t, m, engine.Config{Device: d, Ctx: 64, Batch: 8})
		ids := randomIDs(m, 1, 20)
		want := greedy(t, m, s, ids, 5)
		if err := os.Truncate(path, 4096); err != nil {
			t.Fatal(err)
		}
		s.Reset()
		_, err := s.Prefill(background, ids)
		var fault *gguf.FaultError
		if !errors.As(err, &fault) || fault.File != path {
			t.Errorf("%d slots: %v", slots, err)
		}
		other := openDevice(t, cuda.Options{})
		if _, err := engine.NewSession(m, engine.Config{Device: other}); !errors.As(err, &fault) {
			t.Errorf("loading a file that was cut: %v", err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		s.Reset()
		if got := greedy(t, m, s, ids, 5); !slices.Equal(got, want) {
			t.Errorf("%d slots: after the file is whole %v, want %v", slots, got, want)
		}
	}
}

// TestCUDASignal: SIGINT while tokens are generated ends the generation, not the process.
func TestCUDASignal(t *testing.T) {
	if !child(t) {
		return
	}
	m := narrowModel(t, "qwen3moe", "f16")
	for _, slots := range []int64{0, 3} {
		ctx, stop := signal.NotifyContext(background, os.Interrupt)
		d := openDevice(t, cuda.Options{CacheBytes: slots * expertBytes(m)})
		s := newSession(t, m, engine.Config{Device: d, Ctx: 1024})
		g, err := s.Generate(ctx, []int32{1, 2, 3}, greedySampler(t, m), engine.GenerateConfig{MaxTokens: 1000, IgnoreEOS: true}, func(id int32) error {
			if s.Pos() == 8 {
				go syscall.Kill(os.Getpid(), syscall.SIGINT)
			} else if s.Pos() > 8 {
				time.Sleep(time.Millisecond) // a fast device would be through before the signal comes
			}
			return nil
		})
		if err != nil || g.Stop != engine.StopCancel || len(g.Tokens) < 6 {
			t.Errorf("%d slots: %d tokens, stopped by %q, %v", slots, len(g.Tokens), g.Stop, err)
		}
		stop()
	}
}
