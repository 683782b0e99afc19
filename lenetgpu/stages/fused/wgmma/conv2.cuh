// conv2 of two images on wgmma, read from conv1's pooled cells where they lie, and the turns that
// warpgroups take at it: a cell is 16 bytes, so a filter tap is one K step of bytes or two of fp16.
#pragma once
#include "stages/fused/wgmma/conv1.cuh"

constexpr int PLANE_BYTES = CELLS * IMAGES * CELL;  // [12][IMAGES][12][a cell's channels]
constexpr int STEP2_BYTES = 64 * 2 * CELL;          // [2][channel][cell]
constexpr int TAPS = 5 * 5;

// D[output channel][y][image][x]: an 8-wide output row under tap (r, s) is 8 cells side by side.
// Hands the turn on after PASS_STEP of the steps.
template <int STEPS, typename Sum>
__device__ __forceinline__ void convolve2(Sum (&d)[32 * IMAGES], u32 filters, u32 maps, u32 next,
                                          int lane) {
    constexpr int PARTS_OF_TAP = STEPS / TAPS;
    u64 a = ptx::operand(filters, 64 * CELL, 8 * CELL);
    u64 b = ptx::operand(maps, PLANE_BYTES, SIDE * CELL);
    ptx::here(a);
    ptx::here(b);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const int tap = step / PARTS_OF_TAP, part = step % PARTS_OF_TAP;
        const int cells = tap / 5 * IMAGES * SIDE + tap % 5 + part * 2 * CELLS * IMAGES;
        if (step == 0)
            ptx::wgmma<false>(d, a, b);
        else
            ptx::wgmma<true>(d, a + step * STEP2_BYTES / 16, b + cells);
        if (step + 1 == PASS_STEP && lane == 0) ptx::barrier_arrive(next);
    }
    ptx::wgmma_commit();
}
