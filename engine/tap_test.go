package engine

import (
	"sluice/engine/cpu"
	"sluice/moe"
)

// tappedArm shows every layer call's router logits before they are routed.
type tappedArm struct {
	moe.Arm
	visit func(c *moe.Call)
}

func (a tappedArm) Route(c *moe.Call) error {
	a.visit(c)
	return a.Arm.Route(c)
}

// TapRouting lets a test look at the router logits of every layer call to come.
func (s *Session) TapRouting(visit func(c *moe.Call)) {
	s.back.(*cpu.Backend).WrapArm(func(a moe.Arm) moe.Arm { return tappedArm{a, visit} })
}
