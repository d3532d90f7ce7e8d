// Package sweep compares four ways to share one attention layer of long context among C cubes of P processing elements
// each, with grouped queries (GQA): it runs each of them, counts what moves, and models how long it would take on a
// machine of that shape.
//
// A case says what each axis splits. A cube axis of "sp" (sequence parallel) gives every cube S_kv/C of the positions,
// "repl" gives every cube all of them. A PE axis of "sp" splits the cube's positions once more over its PEs; with "tp" every
// PE of the cube has all of them and queries are split instead.
//
//	case            prefill                                              decode (one query)
//	cube_sp_pe_tp   queries over C*P, key/value blocks pass in a ring    one PE a cube works, merge over cubes
//	cube_repl_pe_tp queries over the P of cube 0, nothing moves          one PE works
//	cube_repl_pe_sp every cube does everything, merge over its PEs       the same
//	cube_sp_pe_sp   queries over C, ring over cubes, merge over PEs      merge over PEs, then over cubes
//
// New makes the schedule: for every rank the list of its operations. Two interpreters take it. Execute runs it with one
// goroutine a rank: each holds its shard of keys, values and queries in memory of its own, attends with the kernels'
// order of operations, and whatever another rank needs goes through a channel that counts. Topology.Simulate runs the same
// lists as events on a model of processors, memories and links. So latency_ns is a model's and measured_ns this machine's.
//
// Every query attends to all S_kv positions: the causal triangle within the last T_q of them is not cut out, which at
// long context is a small part and would blur the comparison of the cases.
package sweep
