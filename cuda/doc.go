// Package cuda computes a session's forward passes on an NVIDIA device: it implements model.Device over the packages
// cuda/driver (the device) and cuda/kernels (what runs on it). All of it but this comment is behind the build tag cuda.
//
// A model's dense weights are copied to the device once, in the layout that its kernels read (store.go). Routed experts
// are all there, or in slots under a budget, with the session's store.Source behind them (experts.go): three levels, device
// memory above the host's cache above the file. A pass of n rows is a list of launches whose arguments were laid out when
// n was first seen (steps.go); running one crosses into C once for all of them, or, where nothing can be missing, once
// for a graph that was captured from them. docs/design/device-arm.md is the way of a token.
//
// What is dropped follows from the Source's residency alone: no size of the device's memory changes a token.
//
// It decides nothing about a binary without a device: that is for whoever links it, because the driver bindings end the
// process where no driver answers.
package cuda
