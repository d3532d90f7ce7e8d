package whole

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

func want(t *testing.T, path, s string) {
	t.Helper()
	if b, err := os.ReadFile(path); err != nil || string(b) != s {
		t.Errorf("%s holds %q (%v), want %q", path, b, err, s)
	}
}

// A file is replaced as a whole, a failure changes nothing, and no other file is left in the folder.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	for _, s := range []string{"first", "second, longer"} {
		if err := WriteFile(path, text(s)); err != nil {
			t.Fatal(err)
		}
		want(t, path, s)
	}
	broken := errors.New("broken")
	err := WriteFile(path, func(w io.Writer) error { io.WriteString(w, "half"); return broken })
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
	want(t, path, "second, longer")
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("mode %v (%v), want 0644", st.Mode(), err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("a", link); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(link, text("through the link")); err != nil {
		t.Fatal(err)
	}
	want(t, path, "through the link")
	if target, err := os.Readlink(link); target != "a" {
		t.Errorf("the link is gone: %q %v", target, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%d files in the folder (%v), want 2", len(entries), err)
	}
	for _, bad := range []string{dir, filepath.Join(dir, "no", "such")} {
		if err := WriteFile(bad, text("x")); err == nil {
			t.Errorf("%s was written", bad)
		}
	}
}

// What is no regular file stays what it is: as root a rename would replace /dev/null for everybody.
func TestWriteSpecial(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	got := make(chan string)
	go func() {
		b, err := os.ReadFile(pipe)
		if err != nil {
			t.Error(err)
		}
		got <- string(b)
	}()
	if err := WriteFile(pipe, text("into the pipe")); err != nil {
		t.Fatal(err)
	}
	if s := <-got; s != "into the pipe" {
		t.Errorf("the reader got %q", s)
	}
	if st, err := os.Lstat(pipe); err != nil || st.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("the pipe is a %v now (%v)", st.Mode(), err)
	}
}
