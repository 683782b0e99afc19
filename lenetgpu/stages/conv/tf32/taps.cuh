// The depth of a product whose rows are outputs of all images one after another: taps of channels (NCHW) or
// channels of taps (NHWC), in chunks; and which of them an output's inputs meet.
#pragma once
#include "gpu/ptx/shared.cuh"
#include "stages/conv/shape.cuh"

using ptx::u32;
using ptx::u64;

constexpr int WARP = 32;
constexpr int CELL = 4, CELL_BYTES = 16, CORE = 8;
constexpr int CHUNK = 32, CELLS = CHUNK / CELL, STEPS = CHUNK / CORE;
constexpr int CHUNKS = (DEPTH + CHUNK - 1) / CHUNK;
constexpr bool PAIRS = WRITES == NCHW;        // a lane's two rows are neighbours, else 8 apart
constexpr bool PIXELWISE = READS == NHWC;     // a tap's channels follow one another, else a channel's taps
constexpr bool POINTS = R == 1 && S == 1 && PAD == 0;

static_assert(R <= 32 && S <= 32, "a bit says whether a row or column of a filter meets inputs");

// Where an output's inputs begin, and which rows and columns of a filter meet any.
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
// A product of the depth: how far from the corner its input is, and of which row and column.
struct Tap {
    int from, row, column;
    bool there;

    __device__ __forceinline__ explicit Tap(int k) : there(k < DEPTH) {
        const int channel = PIXELWISE ? k % CH : k / (R * S);
        const int tap = PIXELWISE ? k / CH : k % (R * S);
        row = tap / S, column = tap % S;
        from = PIXELWISE ? (row * W + column) * CH + channel : (channel * H + row) * W + column;
    }
    __device__ __forceinline__ bool inside(const Corner& of) const {
        if (POINTS) return there && of.rows;
        return there && (of.rows >> row & 1) && (of.columns >> column & 1);
    }
};
