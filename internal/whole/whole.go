// Package whole writes files that are there as a whole or not at all.
package whole

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteFile writes a file beside its name and renames it once it is complete and on the disk: a failure leaves no half of
// one, and an older file as it was. A symbolic link stays, and its target is replaced. What exists and is no regular file (a
// pipe, /dev/stdout, /dev/null) is written to directly: renaming would put a file in its place. Errors of the file system
// name the file; those of write come as they are.
func WriteFile(path string, write func(io.Writer) error) error {
	st, err := os.Stat(path)
	switch {
	case err == nil && st.IsDir():
		return &fs.PathError{Op: "write", Path: path, Err: errors.New("is a folder")}
	case err == nil && !st.Mode().IsRegular():
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(f), f.Close())
	case err == nil:
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return err
		}
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Chmod(0o644) // a temporary file is private
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
