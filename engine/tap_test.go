package engine

import "sluice/moe"

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
	f := s.walk.(*forward)
	f.arm = tappedArm{f.arm, visit}
}
