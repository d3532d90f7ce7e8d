package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"sluice/engine"
	"sluice/engine/launch"
	"sluice/engine/model"
	"sluice/kernels"
	"sluice/moe"
)

// cudaBinary is the program with the device arm. It is this one, built with the tag cuda.
const cudaBinary = "engine-cuda"

// deviceFlags say where to compute.
type deviceFlags struct {
	device  string // as typed; after take: cpu or cuda
	cacheMB string
	ordinal int          // after take: the device's number
	dev     model.Device // after take; nil: this processor
	auto    bool         // after take: the processor will do as well
}

func (f *deviceFlags) add(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.device, "device", "cpu", "where to compute: cpu, cuda, cuda:N (device number N, 0 is the first), or auto (cuda where it works, else cpu)")
	fs.StringVar(&f.cacheMB, "device-cache-mb", "auto", "device memory for experts in MiB; auto: what is left of the device, as much as the model has use for")
}

// cpuOnly are settings that have no effect on a device, or that it does not have.
var cpuOnly = []struct {
	flag, why string
	but       []string // with which they are taken
}{
	{"threads", "the device computes, there is no worker team", nil},
	{"isa", "it names kernels of this processor", nil},
	{"kv", "the device's key/value cache is f16", []string{"f16"}},
	{"acts", "the device quantises the activations of quantised weights", []string{"q8"}},
	{"dense", "dense weights are in the device's memory", []string{"auto"}},
	{"weights", "dense weights are in the device's memory", []string{"auto"}},
	{"prefetch", "the device copies experts when they are demanded", []string{string(launch.PrefetchAuto), string(moe.PrefetchOff)}},
	{"prefetch-mb", "the device copies experts when they are demanded", nil},
	{"probe", "it measures this processor's memory", []string{"false"}},
}

// cacheBytes reads --device-cache-mb; 0 is auto.
func (f *deviceFlags) cacheBytes() (int64, error) {
	if f.cacheMB == "auto" {
		return 0, nil
	}
	mb, err := strconv.ParseInt(f.cacheMB, 10, 64)
	if err != nil || mb < 1 || mb > maxMiB {
		return 0, usagef("--device-cache-mb %q: want auto or a number of MiB, 1 to %d", f.cacheMB, maxMiB)
	}
	return mb << 20, nil
}

// cudaOrdinal reads cuda or cuda:N.
func cudaOrdinal(name string) (n int, ok bool) {
	if name == "cuda" {
		return 0, true
	}
	digits, ok := strings.CutPrefix(name, "cuda:")
	u, err := strconv.ParseUint(digits, 10, 31)
	return int(u), ok && err == nil
}

// take settles where to compute: it opens the device, or leaves this process to the program that can, or returns with
// the processor chosen. auto takes the processor, and says why, where the device is not to be had or a flag is typed
// that only the processor has. A second call does nothing.
func (f *deviceFlags) take(c *cobra.Command, io streams) error {
	cache, err := f.cacheBytes()
	if err != nil {
		return err
	}
	if f.dev != nil {
		return nil
	}
	var ok bool
	switch f.ordinal, ok = cudaOrdinal(f.device); {
	case f.device == "cpu":
		if c.Flags().Changed("device-cache-mb") && !f.auto {
			return usagef("--device-cache-mb %s has no effect with --device cpu", f.cacheMB)
		}
		return nil
	case !ok && f.device != "auto":
		return usagef("--device %q: want cpu, cuda, cuda:N or auto", f.device)
	}
	f.auto = f.device == "auto"
	if err = f.refuse(c); err == nil {
		if builtWithCUDA {
			f.dev, err = openDevice(f.ordinal, cache)
		} else {
			err = handOver(f.auto)
		}
		if err != nil && !f.auto {
			err = fmt.Errorf("--device %s: %w%s", f.device, err, orCPU)
		}
	}
	switch {
	case err != nil && f.auto:
		f.fallBack(io, err)
		return nil
	case err != nil:
		return err
	}
	f.device = "cuda" // settled
	fmt.Fprintln(io.err, "device:", f.dev.Name())
	return nil
}

// fallBack chooses the processor, where that is allowed, and says why.
func (f *deviceFlags) fallBack(io streams, why error) {
	fmt.Fprintln(io.err, "device: computing on the processor:", why)
	f.device = "cpu"
}

// try gives the device back when auto chose it and it cannot do with this model: a tensor's type, or too little memory.
// A session that works leaves the model's weights on the device for the next.
func (f *modelFlags) try(io streams, m *model.Model) error {
	if f.dev == nil || !f.auto {
		return nil
	}
	s, err := engine.NewSession(m, engine.Config{Device: f.dev, Ctx: f.ctx, Batch: f.batch, Arm: f.arm, NExpertUsed: f.nUsed})
	if err == nil {
		return s.Close()
	}
	f.fallBack(io, memoryHint(err, f.cacheMB != "auto", false))
	return f.give()
}

// refuse names the first flag typed that only the processor has.
func (f *deviceFlags) refuse(c *cobra.Command) error {
	for _, s := range cpuOnly {
		fl := c.Flags().Lookup(s.flag)
		if fl != nil && fl.Changed && !slices.Contains(s.but, fl.Value.String()) {
			return usagef("--%s %s has no effect with --device cuda: %s", s.flag, fl.Value, s.why)
		}
	}
	return nil
}

// give closes the device. A second call does nothing.
func (f *deviceFlags) give() error {
	if f.dev == nil {
		return nil
	}
	dev := f.dev
	f.dev = nil
	return dev.Close()
}

// handOver replaces this process by the program with the device arm, and returns only if that cannot be done. With try
// the program first proves, in a process of its own, that it gets a device.
func handOver(try bool) error {
	path, err := readyCUDABinary()
	if err != nil {
		return err
	}
	if try {
		out, err := exec.Command(path, "device", "cuda").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %s (%v)", cudaBinary, lastLine(string(out)), err)
		}
	}
	return fmt.Errorf("starting %s: %w", path, syscall.Exec(path, append([]string{path}, os.Args[1:]...), os.Environ()))
}

// readyCUDABinary finds the program with the device arm where there is a driver for it, and has the environment tell it who
// starts it, so that it can say if it was built from another version.
func readyCUDABinary() (path string, err error) {
	if _, err := findDriver("/", os.Getenv("LD_LIBRARY_PATH")); err != nil {
		return "", err
	}
	if path, err = findCUDABinary(); err != nil {
		return "", err
	}
	return path, os.Setenv(startedByEnv, version)
}

// orCPU is what messages end with where a device was asked for by name. The line that engine-cuda dies with where no
// driver answers always has it.
const orCPU = "; or use --device cpu"

// startedByEnv tells engine-cuda the version of the program that starts it.
const startedByEnv = "SLUICE_STARTED_BY"

// lastLine returns the last line that is not empty, without this program's name before it and the way out behind it.
func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.TrimSuffix(strings.TrimPrefix(lines[len(lines)-1], "engine: "), orCPU)
}

func deviceCommand(io streams) *cobra.Command {
	return &cobra.Command{
		Use:   "device [cpu|cuda|cuda:N]",
		Short: "Say what --device would compute on",
		Long: `Says what --device cpu and --device cuda would compute on, or why not. With one of them named, only that, and the exit
status says whether it is there. cuda:N is device number N.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			which := ""
			if len(args) == 1 {
				which = args[0]
			}
			ordinal, ok := cudaOrdinal(which)
			if which != "" && which != "cpu" && !ok {
				return usagef("device %q: want cpu, cuda or cuda:N", which)
			}
			if !ok {
				fmt.Fprintf(io.out, "cpu: %s kernels, %d processors (%s)\n", kernels.ISA(), runtime.NumCPU(), kernels.Features())
			}
			if which == "cpu" {
				return nil
			}
			err := describeCUDA(io, ordinal)
			if err != nil && which == "" {
				fmt.Fprintf(io.out, "cuda: no: %v\n", err)
				return nil
			}
			return err
		},
	}
}

// describeCUDA prints the device's name, by the program that can open it.
func describeCUDA(io streams, ordinal int) error {
	if builtWithCUDA {
		dev, err := openDevice(ordinal, 0)
		if err != nil {
			return err
		}
		fmt.Fprintln(io.out, dev.Name())
		return dev.Close()
	}
	path, err := readyCUDABinary()
	if err != nil {
		return err
	}
	cmd := exec.Command(path, "device", fmt.Sprintf("cuda:%d", ordinal))
	cmd.Stdout = io.out
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Run(); err != nil {
		return errors.New(lastLine(errs.String()))
	}
	return nil
}
