package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sluice/engine/demo"
	"sluice/engine/gguf"
	"sluice/engine/synth"
)

func ggufCommand(io streams) *cobra.Command {
	c := &cobra.Command{
		Use:   "gguf",
		Short: "Look into, check and make model files",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return usagef("no command given (have %s)", commandNames(c))
		},
	}
	c.AddCommand(infoCommand(io), verifyCommand(io), synthCommand(io))
	return c
}

// openFile opens the named file, or the built-in model for no name.
func openFile(args []string) (*gguf.File, error) {
	if len(args) == 0 {
		return gguf.Parse(demo.Name, demo.Model())
	}
	return gguf.Open(args[0])
}

// fileArg takes one file name or none (the built-in model).
func fileArg(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef("%s: got %d arguments, want one file", c.CommandPath(), len(args))
	}
	return nil
}

type tensorJSON struct {
	Name   string   `json:"name"`
	Type   string   `json:"type"`
	Shape  []uint64 `json:"shape"` // ggml's order: row length first
	Offset int64    `json:"offset"`
	Bytes  int64    `json:"bytes"`
	Shard  int      `json:"shard"`
}

type infoJSON struct {
	File      string         `json:"file"`
	Version   uint32         `json:"version"`
	Alignment uint64         `json:"alignment"`
	Shards    int            `json:"shards"`
	Metadata  map[string]any `json:"metadata"`
	Tensors   []tensorJSON   `json:"tensors"`
}

// arrayJSON stands for a long array.
type arrayJSON struct {
	Array string `json:"array"`
	Len   int    `json:"len"`
}

func infoCommand(io streams) *cobra.Command {
	var asJSON, arrays bool
	c := &cobra.Command{
		Use:   "info [FILE]",
		Short: "Print metadata and tensors",
		Args:  fileArg,
		RunE: func(c *cobra.Command, args []string) error {
			f, err := openFile(args)
			if err != nil {
				return err
			}
			defer f.Close()
			if asJSON {
				return printJSON(io.out, infoDocument(f, arrays))
			}
			w := tabwriter.NewWriter(io.out, 0, 0, 2, ' ', 0)
			fmt.Fprintf(w, "file\t%s\nversion\t%d\nalignment\t%d\nshards\t%d\n", f.Name(), f.Version(), f.Alignment(), len(f.Shards()))
			for _, k := range f.Keys() {
				v, _ := f.Value(k)
				fmt.Fprintf(w, "%s\t%s\n", k, valueText(v, arrays))
			}
			for _, t := range f.Tensors() {
				fmt.Fprintf(w, "%s\t%s\t%v\t%d\n", t.Name, t.Type, t.Dims, t.Size)
			}
			return w.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	c.Flags().BoolVar(&arrays, "arrays", false, "print long arrays whole")
	return c
}

// longArray is the length from which an array is summarised.
const longArray = 32

func infoDocument(f *gguf.File, arrays bool) infoJSON {
	doc := infoJSON{File: f.Name(), Version: f.Version(), Alignment: f.Alignment(), Shards: len(f.Shards()),
		Metadata: map[string]any{}, Tensors: []tensorJSON{}}
	for _, k := range f.Keys() {
		v, _ := f.Value(k)
		if v.Type == gguf.Array && v.Len() > longArray && !arrays {
			doc.Metadata[k] = arrayJSON{v.Elem.String(), v.Len()}
			continue
		}
		doc.Metadata[k] = finite(v.Any())
	}
	for _, t := range f.Tensors() {
		doc.Tensors = append(doc.Tensors, tensorJSON{t.Name, t.Type.String(), t.Dims, t.Offset, t.Size, t.Shard})
	}
	return doc
}

// finite replaces what JSON has no number for by its name.
func finite(v any) any {
	switch x := v.(type) {
	case float64:
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return fmt.Sprint(x)
		}
	case []any:
		for i := range x {
			x[i] = finite(x[i])
		}
	}
	return v
}

func valueText(v gguf.Value, arrays bool) string {
	if v.Type == gguf.Array && v.Len() > longArray && !arrays {
		return fmt.Sprintf("%d x %s", v.Len(), v.Elem)
	}
	if s, ok := v.Any().(string); ok {
		return strings.ReplaceAll(fmt.Sprintf("%q", s), "\t", "\\t")
	}
	return fmt.Sprint(v.Any())
}

type verifyJSON struct {
	File      string   `json:"file"`
	Tensors   int      `json:"tensors"`
	Bytes     int64    `json:"bytes"`
	Unchecked []string `json:"unchecked"` // types without a kernel: bytes present, values not looked at
	Bad       []string `json:"bad"`
}

func verifyCommand(io streams) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "verify [FILE]",
		Short: "Read every weight and report what is not finite",
		Args:  fileArg,
		RunE: func(c *cobra.Command, args []string) error {
			f, err := openFile(args)
			if err != nil {
				return err
			}
			defer f.Close()
			doc := verifyJSON{File: f.Name(), Unchecked: []string{}, Bad: []string{}}
			bar := progress(io.err)
			err = f.Verify(func(t gguf.TensorCheck) error {
				doc.Tensors++
				doc.Bytes += t.Tensor.Size
				bar(doc.Tensors, len(f.Tensors()), t.Tensor.Name)
				if !t.Checked {
					doc.Unchecked = append(doc.Unchecked, fmt.Sprintf("%s (%s)", t.Tensor.Name, t.Tensor.Type))
				}
				if t.NonFinite > 0 {
					doc.Bad = append(doc.Bad, fmt.Sprintf("%s: %d values are not finite, the first %g at %d", t.Tensor.Name, t.NonFinite, t.FirstVal, t.First))
				}
				return c.Context().Err()
			})
			if err == nil {
				err = f.Changed()
			}
			if asJSON {
				return errors.Join(printJSON(io.out, doc), err)
			}
			for _, s := range doc.Unchecked {
				fmt.Fprintln(io.out, "not looked at, no kernel:", s)
			}
			for _, s := range doc.Bad {
				fmt.Fprintln(io.out, "bad:", s)
			}
			if err == nil {
				fmt.Fprintf(io.out, "%s: %d tensors, %d bytes: good\n", doc.File, doc.Tensors, doc.Bytes)
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return c
}

func synthCommand(io streams) *cobra.Command {
	var cfg synth.Config
	var asJSON, describe bool
	g := &cfg.Geometry
	sizes := []struct {
		name, text string
		v          *int
	}{
		{"layers", "number of layers", &g.Layers},
		{"embd", "width of the residual stream", &g.Embd},
		{"heads", "query heads", &g.Heads},
		{"kv-heads", "key/value heads", &g.KVHeads},
		{"head-dim", "width of a head", &g.HeadDim},
		{"experts", "experts per layer", &g.Experts},
		{"used", "experts per token", &g.Used},
		{"ff", "width of an expert", &g.FF},
		{"shared-ff", "width of the shared expert (qwen2moe)", &g.SharedFF},
		{"vocab", "number of tokens", &g.Vocab},
		{"context", "context length", &g.Context},
	}
	c := &cobra.Command{
		Use:   "synth OUT.gguf",
		Short: "Write a model of random weights",
		Long: fmt.Sprintf(`Writes a model of random weights whose activations stay finite: for timing, and for tests of sizes
that no trained model at hand has. The same options and seed give the same bytes.

Presets: %s
Architectures: %s
Types: %s`, strings.Join(synth.Presets(), ", "), strings.Join(synth.Archs(), ", "), strings.Join(synth.Types(), ", ")),
		Example: `  engine gguf synth big.gguf --preset olmoe-1b-7b --arch qwen3moe --type q4_k_m
  engine gguf synth wide.gguf --preset small --experts 128 --used 8 --type q8_0
  engine gguf synth skewed.gguf --preset olmoe-1b-7b --arch qwen3moe --router-skew 1`,
		Args: func(c *cobra.Command, args []string) error {
			if describe {
				return noArgs(c, args)
			}
			return oneArg("the file to write")(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			for _, s := range sizes {
				if c.Flags().Changed(s.name) && *s.v < 1 {
					return usagef("--%s %d: want 1 or more", s.name, *s.v)
				}
			}
			info, err := synth.Describe(cfg)
			if err != nil {
				return usageError{err}
			}
			if !describe {
				if info, err = synth.Write(args[0], cfg); err != nil {
					return err
				}
			}
			if asJSON {
				return printJSON(io.out, info)
			}
			fmt.Fprintf(io.out, "%s, %s, %s: %d tensors, %d parameters, %d bytes of weights, %d of them read per token (%d in experts)\n",
				info.Preset, info.Arch, info.Type, info.Tensors, info.Params, info.WeightBytes, info.ActiveBytes, info.ActiveExpertBytes)
			return nil
		},
	}
	fs := c.Flags()
	fs.StringVar(&cfg.Preset, "preset", "tiny", "sizes to start from")
	fs.StringVar(&cfg.Arch, "arch", "", "architecture (default: the preset's)")
	fs.StringVar(&cfg.Type, "type", "q4_k_m", "quantisation")
	fs.Uint64Var(&cfg.Seed, "seed", 1, "seed of the weights")
	fs.Float64Var(&cfg.RouterSkew, "router-skew", 0, fmt.Sprintf("make routers favour some experts: rank r is chosen about r^-S as often as the first; 0 to %d", synth.MaxRouterSkew))
	fs.BoolVar(&cfg.PerExpert, "per-expert", false, "one tensor per expert, as old Mixtral files have (llama)")
	fs.BoolVar(&describe, "describe", false, "print the sizes and write nothing")
	fs.BoolVar(&asJSON, "json", false, "print one JSON document")
	for _, s := range sizes {
		fs.IntVar(s.v, s.name, 0, s.text+" (default: the preset's)")
	}
	return c
}
