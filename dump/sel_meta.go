package dump

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// SelFormat is the name of the selection dump's format.
const SelFormat = "memra-moe-sel-v1"

const (
	metaSuffix   = ".meta.json"
	maxMetaBytes = 1 << 20
)

// SelMeta is what a selection dump's records cannot say. It goes to the sidecar PATH.meta.json.
type SelMeta struct {
	Model   string            `json:"model"`            // file or name of the model
	Arch    string            `json:"arch"`             // general.architecture
	NLayer  int               `json:"n_layer"`          // <arch>.block_count
	NExpert int               `json:"n_expert"`         // <arch>.expert_count
	NUsed   int               `json:"n_expert_used"`    // effective top-k of this run
	Rows    bool              `json:"rows,omitempty"`   // the run says whose each record is, in the sidecar PATH.rows
	Config  map[string]string `json:"config,omitempty"` // run configuration, as flag -> value
}

type selMetaFile struct {
	Format string `json:"format"`
	Weight string `json:"weight"` // which score the records hold
	SelMeta
}

// ReadSelMeta reads the sidecar of the selection dump at path (the dump's path, not the sidecar's). A dump of another
// engine has none: the error then is fs.ErrNotExist for errors.Is.
func ReadSelMeta(path string) (SelMeta, error) {
	name := path + metaSuffix
	f, err := os.Open(name)
	if err != nil {
		return SelMeta{}, fmt.Errorf("dump: %s: %w", name, pathCause(err))
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxMetaBytes+1))
	if err != nil {
		return SelMeta{}, fmt.Errorf("dump: %s: %w", name, pathCause(err))
	}
	if len(b) > maxMetaBytes {
		return SelMeta{}, fmt.Errorf("dump: %s: longer than %d bytes", name, maxMetaBytes)
	}
	var m selMetaFile
	if err := json.Unmarshal(b, &m); err != nil {
		return SelMeta{}, fmt.Errorf("dump: %s: %w", name, err)
	}
	if m.Format != SelFormat {
		return SelMeta{}, fmt.Errorf("dump: %s: format %q, want %q", name, m.Format, SelFormat)
	}
	return m.SelMeta, nil
}

// writeSelMeta writes the sidecar beside its final name, then renames. The caller holds the dump's lock, so the
// temporary name has one user; one that a killed process left is overwritten.
func writeSelMeta(path string, m SelMeta) (err error) {
	name := path + metaSuffix
	b, err := json.MarshalIndent(selMetaFile{SelFormat, "as routed, before any drop", m}, "", "  ")
	if err != nil {
		return fmt.Errorf("dump: %s: %w", name, err)
	}
	tmp := name + ".tmp"
	err = os.WriteFile(tmp, append(b, '\n'), 0o666)
	if err == nil {
		err = os.Rename(tmp, name)
	}
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("dump: %s: cannot write: %w", name, err)
	}
	return nil
}
