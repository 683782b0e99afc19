// The tensor memory accelerator's im2col addressing (sm_90): windows of an NHWC tensor, zero where
// they leave it. `TensorMap` is CUDA's CUtensorMap, encoded by the host.
#pragma once
#include "gpu/ptx/math.cuh"

struct alignas(64) TensorMap {
    unsigned long long words[16];
};

namespace ptx {

// Channels from `c` on of as many output pixels as the map says, from the one whose window begins
// at (n, y, x) on, under filter pixel (r, s) of every window; the barrier counts the bytes.
__device__ __forceinline__ void load_windows(u32 to, const TensorMap* map, int c, int x, int y,
                                             int n, unsigned short s, unsigned short r, u32 bar) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};"
        ::"r"(to), "l"(map), "r"(c), "r"(x), "r"(y), "r"(n), "r"(bar), "h"(s), "h"(r)
        : "memory");
}

__device__ __forceinline__ void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

}  // namespace ptx
