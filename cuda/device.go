//go:build cuda

package cuda

import (
	"errors"
	"fmt"

	"sluice/cuda/driver"
	"sluice/engine/model"
)

// Options say which device to take, and what of it. The zero value is the first device, and as many experts on it as
// there is room for.
type Options struct {
	Ordinal int    // number of the device, 0 is the first
	Image   []byte // fatbin with the kernels; nil: the one that this binary was built with

	// CacheBytes bounds the device memory for routed experts. 0: what is left of the device. One that does not hold what a
	// token needs at once is refused, with the arithmetic; one above all experts takes no more than those.
	CacheBytes int64

	NoGraph   bool // never capture a decode step: launch it kernel by kernel
	NoOverlap bool // never copy experts while something of their layer is computed
}

// Device is an open device, which implements model.Device. It keeps the weights of one model: those of the model that a
// session was last opened for.
type Device struct {
	drv    *driver.Device
	opt    Options
	info   driver.Info
	stage  *staging // nil before the first session
	loaded *weights // nil: no model is here
}

// New takes a device. Errors of the driver, of its version and of the device's kind are those of driver.Open.
func New(o Options) (model.Device, error) {
	if o.CacheBytes < 0 {
		return nil, model.Settingf("device expert cache of %d bytes: want 0 (as much as there is) or more", o.CacheBytes)
	}
	drv, err := driver.Open(o.Image, o.Ordinal)
	if err != nil {
		return nil, err
	}
	return &Device{drv: drv, opt: o, info: drv.Info()}, nil
}

// Name says which device it is.
func (d *Device) Name() string {
	i := d.info
	return fmt.Sprintf("cuda:%d %s (sm_%d%d, %d MiB, driver %s)", d.opt.Ordinal, i.Name, i.Major, i.Minor, i.Total>>20, driver.Version(i.Driver))
}

// Counters says what was asked of the driver so far.
func (d *Device) Counters() driver.Counters { return d.drv.Counters() }

// Free is the device memory that is free now, in bytes.
func (d *Device) Free() int64 { return d.drv.Info().Free }

// Close frees the weights and the device. Sessions are closed before.
func (d *Device) Close() error {
	err := d.drv.Do(func() error {
		var err error
		if d.loaded != nil && d.loaded.walks > 0 {
			err = fmt.Errorf("cuda: the device is closed under %d open sessions", d.loaded.walks)
		}
		return errors.Join(err, d.unload(), d.stage.close())
	})
	if errors.Is(err, driver.ErrClosed) {
		return nil
	}
	return errors.Join(err, d.drv.Close())
}

// unload frees the model's weights.
func (d *Device) unload() error {
	if d.loaded == nil {
		return nil
	}
	s := d.loaded
	d.loaded = nil
	return s.free()
}

// open returns the model's weights on the device, bringing them if another model's, or none, are here.
func (d *Device) open(m *model.Model) (*weights, error) {
	if d.loaded != nil && d.loaded.model == m {
		return d.loaded, nil
	}
	if d.loaded != nil && d.loaded.walks > 0 {
		return nil, fmt.Errorf("cuda: %s is in use on this device: it holds one model", d.loaded.model.File.Name())
	}
	if err := d.unload(); err != nil {
		return nil, err
	}
	if d.stage == nil {
		stage, err := newStaging(d.drv)
		if err != nil {
			return nil, err
		}
		d.stage = stage
	}
	s, err := loadStore(d, m)
	if err != nil {
		return nil, err
	}
	d.loaded = s
	return s, nil
}

// NewBackend implements model.Device.
func (d *Device) NewBackend(c model.Config) (model.Backend, error) {
	var w *walk
	err := d.drv.Do(func() (err error) {
		w, err = newWalk(d, c)
		var full *driver.NoMemoryError
		if errors.As(err, &full) && d.opt.CacheBytes == 0 && d.loaded != nil && d.loaded.walks == 0 && d.loaded.experts != nil {
			// The experts took what there was when the model came; this session's share is taken back from them.
			if e := d.loaded.dropExperts(); e != nil {
				return errors.Join(err, e)
			}
			w, err = newWalk(d, c)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}
