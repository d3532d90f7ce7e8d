package moe

// Phase is what a row of a pass belongs to. The numbers are the route trace's.
type Phase uint8

// The phases.
const (
	Prefill Phase = 0 // a prompt
	Decode  Phase = 1 // a token that was drawn
)

// Row says whose a row of a layer call is.
type Row struct {
	Seq   int32 // sequence
	Turn  int32 // counted over all sequences of an engine
	Phase Phase
	Step  int32 // absolute position in its sequence
}

// Observed is one layer call as taps see it. The slices are the backend's and valid during the call.
type Observed struct {
	Layer, T, K int
	Pass        int64     // forward pass of the engine, counted from 1
	Rows        []Row     // T
	Expert      []int32   // T x K in slot order, as routed
	Weight      []float32 // T x K, as routed
	Resident    []uint8   // by expert, before the call; nil: everything was resident

	// After the call.
	Dropped    []bool  // T x K
	Read       []int64 // by expert: logical bytes read for the call
	Ahead      []int32 // experts that the call asked to be read ahead, nil: none
	AheadBytes int64   // of those, what had to be read
}

// Tap is told of every layer call: the selection dump, the route trace. An error of it ends the pass.
type Tap interface {
	// Routed comes once the rows are routed, before anything is fetched.
	Routed(o *Observed) error

	// Computed comes behind the layer call, of the same Observed.
	Computed(o *Observed) error
}
