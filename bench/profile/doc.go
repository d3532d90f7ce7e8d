// Package profile summarises device profiles: ops CSV files as tt-metal's profiler writes them and
// as our own op recorder does.
//
//	p, err := profile.Open("ops.csv", profile.Options{})
//	r := p.Report(profile.ReportOptions{FreqMHz: 1350})
//	r.WriteJSON(w); r.WriteMarkdown(w); r.WriteHTML(w)
//
// A file holds one row per op in the order of execution and signpost rows between them. Two
// sections are summarised: eager (eager .. eager_end), where signposts m:<block> and c:<layer> say
// which part of the model the following ops belong to, and trace (trace .. trace_end), the replay
// of the same ops, which inherits those labels op by op as long as both sections have the same
// sequence of op codes. The JSON and the Markdown are, byte for byte, what the Python script that
// defined this report prints: number formatting, rounding and the order of equal rows included.
//
// The package also owns what a writer of such files needs: column names and their order, the names
// of the signposts, the category of an op code, the first line of the device log.
//
// It measures nothing, draws no roofline and never merges the rows of several chips.
package profile
