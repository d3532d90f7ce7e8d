// What kernels read of a row of a pass, and where its sequence's keys and values lie. rows.go writes it.
//
// Keys and values of a layer lie in tiles of KV_TILE positions, [tile][nKV][KV_TILE][headDim] each, anywhere in a pool; a
// sequence's table has the number of the tile of its positions 0 to KV_TILE-1, then of the next ones.
#ifndef SLUICE_ROWS_H
#define SLUICE_ROWS_H

#include "device.h"

#define KV_TILE 64
#define ROW_EXEMPT 1u  // nothing may be dropped in the row

struct __align__(16) Row {
    int pos;         // in its sequence
    int table;       // of its sequence, counted from where the launch's tables begin
    int token;
    unsigned flags;
};

// The first value of a KV head's stretch of a tile.
static __device__ __forceinline__ long long kv_place(int tile, int nKV, int head, int headDim) {
    return ((long long)tile * nKV + head) * KV_TILE * headDim;
}

#endif
