// Package moe is the core of a mixture-of-experts layer: it decides which experts a token goes to, and which of the chosen
// ones are not worth a read. In which memory an expert's weights lie is package store's matter, below it.
//
// Routing takes one layer call (T rows of router logits) to a Table, in this order:
//
//	logits     T x NExpert              from the engine, float32
//	select     Router, the recipe       T x K (expert, weight), slot order = descending selection score
//	drop       Drop, Call.Resident      misses of small weight fall, survivors are rescaled
//	group      Table                    the kept slots by expert, tokens ascending
//
// Two arms do this. The host arm (NewHostArm) takes the steps one after the other over a Selection. The table arm
// (NewTableArm) is the form a device has: one pass from the logits to the table, in which a Selection exists only while
// Call.Sel asks for one. They are two implementations of one contract, equal in every bit; they share kernels.Exp, SqrtSoftplus and
// the drop threshold and nothing else that computes.
//
// The package knows no file format and no model: shapes, extents and policies come in as values, and nothing is logged.
// It does not multiply matrices either; what an expert computes is the engine's business.
package moe
