// Sums to outputs: their scales undone, and the largest output of each image kept (`reached`), by
// which exact.cu sees whether the scales left what counts.
#pragma once
#include "stages/conv/tensor/packed.cuh"

__device__ __forceinline__ float undone(float sum, int top, int drop) {
    return times_power(sum, (top == NO_TOP ? 0 : top - HALF_TOP) + drop);
}
// Bits that order as the sizes of outputs do, 0 of NaN.
__device__ __forceinline__ u32 size_or_none(float v) {
    const u32 bits = size_bits(v);
    return bits <= INFINITY_BITS ? bits : 0;
}

// A warp's N rows a lane, each with the largest output that the lane has of it: to its image.
// Every lane comes here; rows do not fall from `first` to `last`, the warp's images.
template <int N>
__device__ __forceinline__ void keep_largest(u32* __restrict__ reached, const u32 (&most)[N],
                                             const int (&image)[N], int first, int last) {
    for (int one = first; one <= last; ++one) {
        u32 mine = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) mine = max(mine, image[i] == one ? most[i] : 0);
        mine = __reduce_max_sync(~0u, mine);
        if (threadIdx.x % 32 == 0 && mine) atomicMax(reached + one, mine);
    }
}
