// K of an implicit GEMM whose rows are outputs of all images one after another: filter elements of channels
// (NCHW) or channels of filter elements (NHWC), in chunks; and which of them have inputs for an output.
#pragma once
#include "gpu/ptx/shared.cuh"
#include "stages/conv/shape.cuh"

using ptx::u32;
using ptx::u64;

constexpr int WARP = 32;
constexpr int VEC = 4, VEC_BYTES = 16, CORE = 8;
constexpr int CHUNK = 32, VECS = CHUNK / VEC, STEPS = CHUNK / CORE;
constexpr int CHUNKS = (K_SIZE + CHUNK - 1) / CHUNK;
constexpr bool NEIGHBOURS = WRITES == NCHW;   // a lane's two rows are neighbours, else 8 apart
constexpr bool PIXELWISE = READS == NHWC;     // an element's channels follow one another, else a channel's elements
constexpr bool POINTWISE = R == 1 && S == 1 && PAD == 0;

static_assert(R <= 32 && S <= 32, "a bit for each row and column of a filter");

// Where an output's inputs begin, and which rows and columns of a filter have any.
struct Corner {
    long long at;
    u32 rows, columns;

    __device__ __forceinline__ Corner(int row, int outputs) {
        const int image = row / PIXELS, y = row % PIXELS / OW * STRIDE - PAD;
        const int x = row % OW * STRIDE - PAD;
        const int pixel = y * W + x;
        at = (long long)image * (H * W * CH) + (PIXELWISE ? (long long)pixel * CH : pixel);
        rows = columns = 0;
        if (row >= outputs) return;
#pragma unroll
        for (int i = 0; i < R; ++i) rows |= u32(y + i >= 0 && y + i < H) << i;
#pragma unroll
        for (int i = 0; i < S; ++i) columns |= u32(x + i >= 0 && x + i < W) << i;
    }
};
// One index of K: the filter element, and how far its input is from the corner.
struct FilterElement {
    int from, row, column;
    bool there;

    __device__ __forceinline__ explicit FilterElement(int k) : there(k < K_SIZE) {
        const int channel = PIXELWISE ? k % CH : k / (R * S);
        const int element = PIXELWISE ? k / CH : k % (R * S);
        row = element / S, column = element % S;
        from = PIXELWISE ? (row * W + column) * CH + channel : (channel * H + row) * W + column;
    }
    __device__ __forceinline__ bool inside(const Corner& of) const {
        if (POINTWISE) return there && of.rows;
        return there && (of.rows >> row & 1) && (of.columns >> column & 1);
    }
};
