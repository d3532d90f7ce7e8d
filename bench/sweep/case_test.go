package sweep

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func TestPrefillWorkGolden(t *testing.T) {
	b, err := os.ReadFile("testdata/prefill_4cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Row
		Expected Work `json:"expected"`
	}
	if err := json.Unmarshal(b, &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 4 {
		t.Fatalf("%d rows", len(rows))
	}
	for i, r := range rows {
		k, err := panelCase(r.Panel, Prefill)
		if err != nil || k != Cases()[i] || k.Panel(Prefill) != r.Panel {
			t.Fatalf("%s: %+v %v", r.Panel, k, err)
		}
		got, err := k.Work(&Config{Mode: Prefill, SKV: r.SKV, TQ: r.TQ, KVHeads: r.KVHeads, HeadDim: r.HeadDim, Group: 8, C: r.C, P: r.P})
		if err != nil || got != r.Expected {
			t.Errorf("%s: %+v %v, want %+v", r.Panel, got, err, r.Expected)
		}
	}
}

func TestDecodeWork(t *testing.T) {
	c := Config{Mode: Decode, SKV: 8192, TQ: 1, KVHeads: 1, HeadDim: 128, Group: 8, C: 4, P: 8}
	for i, want := range []Work{
		{SLocal: 2048, ActivePEs: 4, KVBytes: 2048 * 512, TQ: 1, SProcessed: 2048, Total: 8192},
		{SLocal: 8192, ActivePEs: 1, KVBytes: 8192 * 512, TQ: 1, SProcessed: 8192, Total: 8192},
		{SLocal: 1024, ActivePEs: 32, KVBytes: 1024 * 512, TQ: 1, SProcessed: 1024, Total: 32768},
		{SLocal: 256, ActivePEs: 32, KVBytes: 256 * 512, TQ: 1, SProcessed: 256, Total: 8192},
	} {
		k := Cases()[i]
		if got, err := k.Work(&c); err != nil || got != want {
			t.Errorf("%s: %+v %v, want %+v", k.Name, got, err, want)
		}
	}
	if p := Cases()[0].Panel(Decode); p != "single_kv_group_decode_long_ctx_gqa_cube_sp_pe_tp" {
		t.Errorf("panel %q", p)
	}
}

// What does not divide is refused where, and only where, it is divided.
func TestSizesThatDoNotDivide(t *testing.T) {
	fits := Config{Mode: Prefill, SKV: 240, TQ: 60, KVHeads: 1, HeadDim: 8, Group: 2, C: 4, P: 5}
	for _, c := range []struct {
		name string
		edit func(*Config)
		want [4]string // by case, "" where it fits
	}{
		{"everything divides", func(*Config) {}, [4]string{}},
		{"S_kv by C", func(c *Config) { c.SKV, c.TQ = 245, 20 }, [4]string{"S_kv = 245 does not divide over C = 4 (remainder 1)", "", "", "S_kv = 245 does not divide over C*P = 20 (remainder 5)"}},
		{"S_kv by P", func(c *Config) { c.SKV, c.TQ = 244, 20 }, [4]string{"", "", "S_kv = 244 does not divide over P = 5 (remainder 4)", "S_kv = 244 does not divide over C*P = 20 (remainder 4)"}},
		{"T_q by P", func(c *Config) { c.TQ = 4 }, [4]string{"T_q = 4 does not divide over C*P = 20 (remainder 4)", "T_q = 4 does not divide over P = 5 (remainder 4)", "", ""}},
		{"T_q by C", func(c *Config) { c.TQ = 5 }, [4]string{"T_q = 5 does not divide over C*P = 20 (remainder 5)", "", "", "T_q = 5 does not divide over C = 4 (remainder 1)"}},
		{"decode does not divide T_q", func(c *Config) { c.Mode, c.TQ = Decode, 1 }, [4]string{}},
	} {
		cfg := fits
		c.edit(&cfg)
		for i, k := range Cases() {
			want := c.want[i]
			_, err := New(cfg, k)
			switch {
			case want == "" && err != nil:
				t.Errorf("%s, %s: %v", c.name, k.Name, err)
			case want != "" && (err == nil || !strings.Contains(err.Error(), "case "+k.Name+": "+want)):
				t.Errorf("%s, %s: error %v, want %q in it", c.name, k.Name, err, want)
			}
		}
	}
}

func TestCheckRefuses(t *testing.T) {
	good := Config{Mode: Prefill, SKV: 64, TQ: 4, KVHeads: 1, HeadDim: 8, Group: 2, C: 2, P: 2}
	for _, c := range []struct {
		want string
		edit func(*Config)
	}{
		{`mode "train"`, func(c *Config) { c.Mode = "train" }},
		{"S_kv is 0", func(c *Config) { c.SKV = 0 }},
		{"S_kv is -8", func(c *Config) { c.SKV = -8 }},
		{"T_q is -1", func(c *Config) { c.TQ = -1 }},
		{"h_kv is 0", func(c *Config) { c.KVHeads = 0 }},
		{"d_head is 513", func(c *Config) { c.HeadDim = 513 }},
		{"query heads per key/value head is 0", func(c *Config) { c.Group = 0 }},
		{"C is 0", func(c *Config) { c.C = 0 }},
		{"P is -2", func(c *Config) { c.P = -2 }},
		{"C*P is 1048576", func(c *Config) { c.C, c.P = 1024, 1024 }},
		{"T_q is 4, want 1 in decode", func(c *Config) { c.Mode = Decode }},
	} {
		cfg := good
		c.edit(&cfg)
		if _, err := New(cfg, Cases()[0]); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q in it", err, c.want)
		}
	}
	if _, err := FindCase("cube_sp"); err == nil || !strings.Contains(err.Error(), "cube_repl_pe_sp") {
		t.Errorf("unknown case: %v", err)
	}
}
