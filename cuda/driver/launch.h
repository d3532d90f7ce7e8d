// The part of the driver API that gorgonia.org/cu does not have, and the per-token path: one call from Go runs a range
// of launches. Every function returns a CUresult as an int; 0 is success.
//
// All of them belong on the thread that the device's context is current on.
#ifndef SLUICE_LAUNCH_H
#define SLUICE_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

// sluice_launch is one kernel launch with its arguments already where the driver reads them: args[i] points at an
// 8-byte cell. The driver copies as many bytes of a cell as the kernel's parameter has.
typedef struct {
	void *func; // CUfunction
	uint32_t grid[3], block[3];
	uint32_t shared; // bytes of dynamic shared memory
	uint32_t nargs;
	void **args;
} sluice_launch;

// sluice_run starts l[from..to) in order. On an error *failed is the index of the launch that was refused.
int sluice_run(const sluice_launch *l, int64_t from, int64_t to, void *stream, int64_t *failed);

// sluice_function looks a kernel up; more than 48 KiB of dynamic shared memory must be asked for before the launch.
int sluice_function(void *module, const char *name, uint32_t shared, void **func);

// Pinned host memory that the device can address: *host and *device name the same bytes.
int sluice_pin(size_t bytes, void **host, uint64_t *device);
int sluice_unpin(void *host);

// A stream waits until the 32-bit word at addr, read as unsigned, is at least value (cyclic), or writes value there.
int sluice_wait_value(void *stream, uint64_t addr, uint32_t value);
int sluice_write_value(void *stream, uint64_t addr, uint32_t value);

// What is put into the stream between the two calls becomes a graph. The end is owed even when something between them
// failed; exec is then NULL.
int sluice_capture_begin(void *stream);
int sluice_capture_end(void *stream, void **exec);
int sluice_graph_launch(void *exec, void *stream);
int sluice_graph_free(void *exec);

// The driver's own name and sentence for a result; never NULL.
const char *sluice_error_name(int code);
const char *sluice_error_text(int code);

#endif
