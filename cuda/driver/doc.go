// Package driver is the engine's hold on one NVIDIA device through libcuda: a context on one locked OS thread, memory
// with an owner and a name, streams, events, launches whose arguments are laid out once, and captured graphs.
//
// It stands on gorgonia.org/cu (driver API) and on launch.c beside it, which has what that package lacks: pinned
// memory, capture and graphs, the stream memory operations in their second version, and one call into C for a whole
// range of launches. It knows nothing of models; what is launched comes from sluice/cuda/kernels.
//
// Everything but this comment is behind the build tag cuda and needs cgo, cuda.h and libcuda:
//
//	eval "$(cuda/env.sh)" && go test -tags cuda ./cuda/driver
//
// A process that links this package ends before main when no driver answers: the initialisation of gorgonia.org/cu sees
// to that, and package first to a reason. A program that may run on a machine without a driver must therefore look
// before it starts a binary with this package in it.
//
// # Thread
//
// A CUDA context belongs to a thread. Open starts one goroutine that keeps its OS thread for good, and Device.Do runs
// a function there. Every method of Device, Stream, Event, Program, Graph, Mem and Pinned belongs inside Do and panics
// outside it, except where its comment says otherwise. Do calls from several goroutines run one after another.
package driver
