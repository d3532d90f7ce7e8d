// Package store keeps experts: a Source hands out the bytes of the experts of one call, from a mapping, from memory, or
// from a cache of bounded size that reads what is missing and answers the residency question that dropping asks.
//
// Cache decides what is kept and what goes, without memory or I/O; the cached source carries it out with slots, reader
// lanes and direct reads. The package knows no model and no router: which bytes an expert has comes in as a Layout.
package store
