package main

import (
	"fmt"
	"io"
	"os"
)

// progress returns a function that shows how far a long run is, on a terminal only.
func progress(w io.Writer) func(done, total int, note string) {
	f, ok := w.(*os.File)
	if !ok {
		return func(int, int, string) {}
	}
	if st, err := f.Stat(); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return func(int, int, string) {}
	}
	return func(done, total int, note string) {
		fmt.Fprintf(f, "\r%d/%d  %s\x1b[K", done, total, note)
		if done == total {
			fmt.Fprintln(f)
		}
	}
}
