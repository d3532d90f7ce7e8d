// Package ops profiles one forward pass op by op and writes it as an ops CSV of tt-metal's format v2.1, the form that
// engine profile, profile_summary.py and tt-perf-report read (docs/format/ops-csv.md). The device is the worker team, and
// its cycles are nanoseconds of the monotonic clock; or it is the session's model.Device, whose events are laid on that
// clock, and its cores are what it has of them.
//
// The file has two sections, each a real execution of the same pass: eager is the first one at its place, trace one
// after several repeats. Package profile knows the format, this package what our ops are in its terms; it neither
// summarises nor times whole runs.
package ops
