package replay_test

import (
	"testing"

	"sluice/dump"
	"sluice/moe"
)

// TestCodesAgree: what the router is told of residency, and what rows are told of their phase, goes to the trace as it is.
func TestCodesAgree(t *testing.T) {
	type codes struct{ miss, hit, ahead uint8 }
	if got, want := (codes{moe.Miss, moe.Hit, moe.HitAhead}), (codes{dump.Miss, dump.Hit, dump.HitPrefetch}); got != want {
		t.Errorf("moe has %v, the trace %v", got, want)
	}
	if moe.Prefill != dump.Prefill || moe.Decode != dump.Decode {
		t.Errorf("phases %d and %d, the trace has %d and %d", moe.Prefill, moe.Decode, dump.Prefill, dump.Decode)
	}
}
