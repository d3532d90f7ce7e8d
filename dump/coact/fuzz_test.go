package coact

import (
	"bytes"
	"context"
	"testing"
)

// Whatever the bytes are: no panic, and where there is an answer it adds up and its placement reads back.
func FuzzAnalyse(f *testing.F) {
	f.Add(randomDump(1, 2, 30, 12, 3), uint8(12), uint8(2), uint8(3))
	f.Add(randomDump(1, 1, 5, 4, 4)[:60], uint8(4), uint8(4), uint8(4))
	f.Add([]byte("turn,phase"), uint8(200), uint8(16), uint8(0))
	f.Add(appendRecord(nil, 255, []int{0}), uint8(2), uint8(2), uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, experts, cards, replicate uint8) {
		o := Options{Experts: int(experts)%32 + 2, Cards: int(cards), Replicate: []int{int(replicate)}, Threads: 1}
		r, err := Analyse(context.Background(), bytes.NewReader(data), o)
		if err != nil {
			return
		}
		for i, l := range r.layers {
			if sum(l.picks(false)) != l.tokens*uint64(l.k) {
				t.Fatal("picks")
			}
			if s := r.Layers[i].Splits[0]; s.Fit.Tokens+s.HeldOut.Tokens != l.tokens || sum(s.units)+sum(s.unitsFit) != l.tokens*uint64(l.k)*pickUnits {
				t.Fatalf("%+v", s)
			}
		}
		var b bytes.Buffer
		if err := r.Placement.Write(&b); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadPlacement(&b); err != nil {
			t.Fatal(err)
		}
		if r.WriteText(&b) != nil || r.WriteMarkdown(&b) != nil || r.WriteMatrix(&b) != nil {
			t.Fatal("print")
		}
	})
}

func FuzzReadPlacement(f *testing.F) {
	r := analyse(f, randomDump(1, 2, 50, 6, 2), Options{Experts: 6, Cards: 2, Replicate: []int{2}})
	var b bytes.Buffer
	if err := r.Placement.Write(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte(`{"format":"sluice-placement-v1","cards":1,"n_expert":1,"layers":[{"layer":0,"experts":[[0]]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ReadPlacement(bytes.NewReader(data))
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := p.Write(&again); err != nil {
			t.Fatal(err)
		}
		q, err := ReadPlacement(&again)
		if err != nil || len(q.Layers) != len(p.Layers) {
			t.Fatal(err)
		}
	})
}
