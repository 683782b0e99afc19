// What wgmma multiplies of a chunk: inputs that a lane holds, split, by filters in shared memory. A kernel
// includes it when it has said a block's BN filters.
#pragma once
#include "stages/conv/tf32/coordinates.cuh"
#include "stages/conv/tf32/wide.cuh"

// A lane's rows are 2 (lane / 4) and the next, or lane / 4 and 8 below, of products lane % 4 and 4 on in
// every 8.
struct SplitInputs {
    u32 high[STEPS][4], low[STEPS][4];

    // Of both rows product lane % 4 of the `i`th four. `largest`: of each row so far; infinity counts, NaN does not.
    __device__ __forceinline__ void hold(int i, const float (&v)[2], float (&largest)[2]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const Split split = split_tf32(v[h]);
            high[i / 2][i % 2 * 2 + h] = split.high, low[i / 2][i % 2 * 2 + h] = split.low;
            largest[h] = fmaxf(largest[h], fabsf(v[h]));
        }
    }
};

// A chunk's products, small ones first, from zero.
__device__ __forceinline__ void multiply(float (&sum)[BN / 2], const SplitInputs& inputs, u32 filters) {
    constexpr int STEP = 2 * BN, LOW = VECS * BN;  // of a descriptor: 8 along K, the low part
    const u64 column = ptx::operand(filters, BN * VEC_BYTES, CORE * VEC_BYTES);
    ptx::wgmma_fence();
    ptx::wgmma_tf32<false>(sum, inputs.low[0], column);
#pragma unroll
    for (int s = 1; s < STEPS; ++s) ptx::wgmma_tf32<true>(sum, inputs.low[s], column + s * STEP);
#pragma unroll
    for (int s = 0; s < STEPS; ++s) ptx::wgmma_tf32<true>(sum, inputs.high[s], column + LOW + s * STEP);
#pragma unroll
    for (int s = 0; s < STEPS; ++s) ptx::wgmma_tf32<true>(sum, inputs.high[s], column + s * STEP);
    ptx::wgmma_commit();
}
