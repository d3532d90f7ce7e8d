//go:build cuda

package cuda

import (
	"context"
	"errors"
	"fmt"

	"sluice/cuda/driver"
	"sluice/engine/model"
	"sluice/moe/store"
)

// openExperts finds the experts' memory, once for all sessions of the model, and fills it if all fit.
func (w *walk) openExperts() error {
	k := w.cfg.NExpertUsed
	if w.s.experts == nil {
		if err := w.placeExperts(k); err != nil {
			return err
		}
	}
	w.x = w.s.experts
	if !w.x.resident && w.x.budget < leastBytes(w.x.classes, k) {
		return model.Settingf("device expert cache of %s: one token's experts of a layer need %s", size(w.x.budget), slotSum(w.x.classes, k))
	}
	w.ahead = w.watched || !w.x.resident
	return nil
}

// placeExperts takes the memory. Where nobody said how much, a refusal of the driver makes it less.
func (w *walk) placeExperts(k int) error {
	shapes := make([]expertShape, len(w.m.Layers))
	for i := range shapes {
		shapes[i] = shapeOf(w.m.Layers[i].Experts())
		for _, p := range shapes[i].proj {
			if err := w.d.stage.prepare(p.typ, p.rows, p.cols); err != nil {
				return err
			}
		}
	}
	classes, _ := slotClasses(shapes)
	asked := w.d.opt.CacheBytes
	budget, err := planBudget(classes, w.m.NExpert, k, asked, w.d.drv.Info().Free)
	if err != nil {
		return err
	}
	for {
		x, err := openExperts(w.s, k, budget)
		var full *driver.NoMemoryError
		if errors.As(err, &full) && asked == 0 && budget > leastBytes(classes, k) {
			less := max(budget-budget/8, leastBytes(classes, k))
			w.notes = append(w.notes, fmt.Sprintf("expert cache of %s: %v: trying %s", size(budget), full, size(less)))
			budget = less
			continue
		}
		if err != nil {
			return err
		}
		w.s.experts = x
		break
	}
	if !w.s.experts.resident {
		return nil
	}
	// Past the session's source: what that holds, and counts, is the session's own.
	file, err := store.NewMapped(w.m.Layout)
	if err == nil {
		err = w.m.Guard(func() error { return w.s.experts.fill(context.Background(), file) })
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return errors.Join(err, w.s.dropExperts())
	}
	return nil
}
