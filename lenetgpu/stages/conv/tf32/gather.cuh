// Inputs on their way into shared memory. A kernel includes it when it has said QUADS: four neighbours a copy.
#pragma once
#include "gpu/ptx/async.cuh"
#include "stages/conv/tf32/coordinates.cuh"

__device__ __forceinline__ Corner of_lane(const Corner& own, int lane) {
    Corner found = own;
    const u32 low = __shfl_sync(~0u, u32(own.at), lane), high = __shfl_sync(~0u, u32(own.at >> 32), lane);
    found.at = (long long)(u64(high) << 32 | low);
    found.rows = __shfl_sync(~0u, own.rows, lane);
    if (!POINTWISE) found.columns = __shfl_sync(~0u, own.columns, lane);
    return found;
}
__device__ __forceinline__ void copy_input(float* to, const float* __restrict__ x, const Corner& corner,
                                           const FilterElement& element) {
    const bool there = element.inside(corner);
    const float* from = x + (there ? corner.at + element.from : 0);
    if constexpr (QUADS) ptx::copy16_or_zero(to, from, there);
    else ptx::copy4_or_zero(to, from, there);
}
