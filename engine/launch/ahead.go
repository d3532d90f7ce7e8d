package launch

import (
	"fmt"

	"sluice/engine"
	"sluice/moe"
)

// PrefetchAuto reads ahead where that was found to pay: see Ahead.
const PrefetchAuto moe.Prefetch = "auto"

// Ahead is what an engine is to read ahead.
type Ahead struct {
	Mode  moe.Prefetch // PrefetchAuto, or one of moe.PrefetchModes
	Bytes int64        // bound of a layer call's; 0: none is asked for

	// Drops: some engine of the run drops experts. Then none of them reads ahead by itself, so that the threshold is all they
	// differ in: what is read ahead is not cold any more, and a threshold drops less for more bytes
	// (docs/design/expert-cache.md has figures).
	Drops bool
	// Several: settings are compared, so that what is asked for need not have an effect in this one.
	Several bool
}

// NoEffectError says that a bound was asked for where nothing is read ahead.
type NoEffectError struct {
	Bytes int64
	Mode  moe.Prefetch
	Why   string
}

func (e *NoEffectError) Error() string {
	return fmt.Sprintf("a bound of %d bytes on what is read ahead has no effect: prefetch is %s here%s", e.Bytes, e.Mode, e.Why)
}

// settle chooses the mode for a plan; why follows it in a message where it was chosen here.
func (a Ahead) settle(plan engine.SourcePlan, onDevice bool) (mode moe.Prefetch, why string, err error) {
	mode = moe.PrefetchOff
	switch {
	case a.Mode != PrefetchAuto && a.Several && plan.BudgetBytes == 0:
	case a.Mode != PrefetchAuto:
		return a.Mode, "", nil
	case plan.BudgetBytes == 0:
		why = " (there is no expert cache)"
	case onDevice:
		why = " (the device copies experts when they are demanded)"
	case a.Drops:
		why = " (with dropping: what is read ahead would not be cold)"
	case plan.BudgetBytes < plan.WorkingSet:
		why = " (the cache does not hold one token's experts)"
	case plan.Fit == plan.Experts:
		why = " (all experts fit in the cache)"
	default:
		return moe.PrefetchNextLayer, " (not all experts fit in the cache)", nil
	}
	if a.Bytes > 0 && !a.Several {
		return mode, why, &NoEffectError{a.Bytes, mode, why}
	}
	return mode, why, nil
}
