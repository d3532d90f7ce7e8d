// Package roofline sets a model beside a machine: at what batch and context does decode stop being limited by the
// weights it reads, and how long must a token take at least. It computes from a few numbers and measures nothing
// (package probe does), and leaves out communication, attention's arithmetic and any utilisation factor: what it returns
// are bounds, not predictions.
//
// With C the peak of the machine in operations per second, W its memory bandwidth in bytes per second, N the parameters
// that one token multiplies with, b the bytes of one, S the context in tokens and k the bytes of keys and values of one
// position:
//
//	AI     = C/W                    operations that fit into the read of a byte
//	B*     = AI*b/2 * sparsity      batch from which the weights' read hides behind their arithmetic
//	L*     = 2N/(AI*k)              context at which reading keys and values takes as long as computing
//	B_knee = B*/(1-S/L*)            batch at which both reads together take as long; none from S = L* on
//	t(B,S) = N*b/(W*B) + 2N/C + S*k/W    seconds per token at batch B: weights, arithmetic, keys and values
//
// The knee uses the dense B* (sparsity 1), as the formula's source does.
//
// # Mixture of experts
//
// The dense formula lets a batch share all weights from the first token on. In a mixture of experts a batch reads the
// experts that its tokens chose, so the weights' read grows with the batch until all experts are touched. MoE replaces the
// first term by (dense bytes + distinct experts(B) * bytes of one)/(W*B), where the number of distinct experts comes from
//
//	Uniform   E*(1-(1-u/E)^B): each token takes u of E experts, all equally likely and tokens independent
//	Measured  the mean over groups of B tokens of a selection dump
//
// and, where only part of the experts is in memory, adds a read from a slower level: the missed share of those bytes at
// that level's bandwidth. The levels are added, not overlapped: the sum is what is paid when the read is waited for.
package roofline
