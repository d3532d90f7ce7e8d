package synth

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestPeerLoads lets llama.cpp load every architecture and every type, and wants finite logits from it.
func TestPeerLoads(t *testing.T) {
	peer, libs := os.Getenv("SLUICE_PEER"), os.Getenv("SLUICE_PEER_LIBS")
	if peer == "" || libs == "" {
		t.Skip("SLUICE_PEER and SLUICE_PEER_LIBS do not name a llama.cpp driver and its libraries")
	}
	var cases []Config
	for _, arch := range Archs() {
		cases = append(cases, Config{Arch: arch, Type: "q4_k_m"})
	}
	for _, typ := range Types() {
		if typ != cases[0].Type {
			cases = append(cases, Config{Type: typ})
		}
	}
	for _, c := range cases {
		c.Seed = 11
		in, err := Describe(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Run("arch="+in.Arch+"/type="+in.Type, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "m.gguf")
			if _, err := Write(path, c); err != nil {
				t.Fatal(err)
			}
			ids := "72,101,108,108,111," + strconv.Itoa(in.Geometry.Vocab-1)
			out, err := exec.Command(peer, "--libs", libs, "--model", path, "--logits", ids, "--top", "5").Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			// Any token that is not a number fails here: JSON has no NaN.
			var got struct {
				Top []struct{ ID, Logprob, Logit float64 }
			}
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%v in %s", err, out)
			}
			if len(got.Top) != 5 {
				t.Fatalf("%d tokens, want 5: %s", len(got.Top), out)
			}
			// With weights of these spreads the logits' own spread is about 1, and the largest of a few hundred lies
			// near 3; far outside, some tensor was read with another spread or shape.
			if best := got.Top[0].Logit; !(best > 1 && best < 8) {
				t.Errorf("best logit %v, want a few: %s", best, out)
			}
			if math.IsInf(got.Top[4].Logprob, 0) || strings.Contains(string(out), "inf") {
				t.Errorf("not finite: %s", out)
			}
		})
	}
}
