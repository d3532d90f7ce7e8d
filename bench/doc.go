// Package bench measures: how fast a session prefills and decodes. It owns no flags and prints
// nothing; it takes a session and returns numbers.
package bench
