// Package bench measures how fast sessions prefill and decode, sets each figure beside the machine's limit, and writes
// the results as a table, CSV or Go benchmark lines. It owns no flags and opens no model: it takes open sessions and
// returns numbers. What else it holds: the recorded run behind --ops-csv and --chrome-trace, and the warnings about a
// machine that is busy. docs/benchmarks.md says how to measure; packages below it profile, probe and compute bounds.
package bench
