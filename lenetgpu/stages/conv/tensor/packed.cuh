// What the kernels of this folder share: how split images lie in memory, powers of two as ints, and
// sums on their way to outputs. An image is [H][WP][PARTS][CP / 8] 16-byte vectors of 8 fp16: the
// high ones of a pixel's channels, then the low ones. FOLD: a filter row's S * CH inputs are the
// channels of an output column, so that few channels fill vectors. PLANES: [PARTS][phase][CP / 8]
// [position] instead, rows PITCH and images SLOT positions apart; an image has PAD rows above and PAD
// columns before it, which are zeros, and at a stride of 1 those of the next row and image are the ones
// after it. Every STRIDE-th row and column is a phase. POINTS = 4: two output columns are a position,
// of Winograd's F(2, 3) along a row; its four transform points are phases, and no column lies before an image.
#pragma once
#include "gpu/ptx/cluster.cuh"
#include "gpu/ptx/math.cuh"
#include "stages/conv/shape.cuh"
#include "stages/element.cuh"

using ptx::u32;
using ptx::u64;

// First in every kernel, which may be launched before the previous one has ended (sm_90).
__device__ __forceinline__ void follow() {
    ptx::wait_for_grid();
    ptx::start_next_grid();
}

constexpr int VEC = 8;
constexpr int VEC_BYTES = 16;
constexpr int GROUPS = CP / VEC;              // of channels
constexpr bool WINOGRAD = POINTS > 1;
constexpr int ELEMENTS_X = FOLD ? 1 : WINOGRAD ? POINTS : S;
constexpr int STEP_X = FOLD ? 1 : WINOGRAD ? POINTS : STRIDE;
constexpr int PAD_X = FOLD || WINOGRAD ? 0 : PAD;
constexpr int ACROSS_X = WINOGRAD ? 2 : 1;     // output columns of a position
constexpr int OUT_X = (OW + ACROSS_X - 1) / ACROSS_X;
constexpr int PHASES_Y = !PLANES ? 1 : STRIDE < R ? STRIDE : R;
constexpr int PHASES_X = !PLANES ? 1 : STEP_X < ELEMENTS_X ? STEP_X : ELEMENTS_X;
constexpr int PHASES = PHASES_Y * PHASES_X;
constexpr int FILLED = ((FOLD ? S * CH : CH) + VEC - 1) / VEC;  // groups of more than zeros

static_assert(CP % VEC == 0 && CP >= (FOLD ? S * CH : CH), "whole vectors hold every channel");
static_assert(WP == (FOLD ? OW : WINOGRAD ? OUT_X : W), "a folded image has a column for each output column");
static_assert(!WINOGRAD || (POINTS == 4 && PLANES && !FOLD && S == 3 && STRIDE == 1), "F(2, 3) in planes");
static_assert(PARTS == 1 || PARTS == 2, "fp16, or fp16 high and low");

constexpr int FP16_EXPONENT = 15;             // scaled operands stay below 2^15
constexpr int NO_EXPONENT = -4096;            // of an image without a number but 0
constexpr int NORMAL = 126;                   // 2^-126 to 2^126 are normal floats
constexpr u32 INFINITY_BITS = 0x7f800000;

__device__ __forceinline__ u32 size_bits(float v) { return __float_as_uint(v) & 0x7fffffff; }

// The least e of a normal exponent with |v| < 2^e; NO_EXPONENT of 0, infinity and NaN.
__device__ __forceinline__ int exponent_of(float v) {
    const u32 bits = size_bits(v);
    if (bits == 0 || bits >= INFINITY_BITS) return NO_EXPONENT;
    return int(bits >> 23) - NORMAL;
}
__device__ __forceinline__ float power(int k) { return __uint_as_float(u32(k + 127) << 23); }

// v times 2^k, in two steps where one power does not reach.
__device__ __forceinline__ float times_power(float v, int k) {
    if (u32(k + NORMAL) <= 2 * NORMAL) return v * power(k);
    const int held = max(-2 * NORMAL, min(2 * NORMAL, k));
    return v * power(held / 2) * power(held - held / 2);
}

// A sum with its scales undone.
__device__ __forceinline__ float unscaled(float sum, int exponent, int out_scale) {
    return times_power(sum, (exponent == NO_EXPONENT ? 0 : exponent - FP16_EXPONENT) + out_scale);
}
// Bits that order as the sizes of sums do, 0 of NaN; where ReLU is applied NaN is the largest.
__device__ __forceinline__ u32 size_or_none(float v) {
    const u32 bits = size_bits(v);
    return RELU || bits <= INFINITY_BITS ? bits : 0;
}

// A warp's N rows a lane, each with the largest output that the lane has of it, to the largest of its
// image (`reached`), by which epilogue.cu finds images that need a recheck. Every lane comes
// here; rows do not fall from `first` to `last`, the warp's images.
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

// Inputs and outputs are held as DTYPE; sums are fp32, to which a bias is added before ReLU is applied, then
// they are rounded, once.
using Value = Element<DTYPE>;
using Held = Value::Held;

// An input, zero in the padding.
__device__ __forceinline__ float value_at(const Held* __restrict__ x, size_t n, int y, int col,
                                          int c) {
    if (PAD > 0 && (y < 0 || y >= H || col < 0 || col >= W)) return 0.0f;
    return Value::load(x[offset<READS, H, W, CH>(n, y, col, c)]);
}
// Four neighbours, the first where four of them are aligned.
__device__ __forceinline__ float4 four_at(const Held* from) {
    if constexpr (DTYPE == FP32) {
        return *reinterpret_cast<const float4*>(from);
    } else {
        const uint2 four = *reinterpret_cast<const uint2*>(from);
        return {Value::load(Held(four.x & 0xffff)), Value::load(Held(four.x >> 16)),
                Value::load(Held(four.y & 0xffff)), Value::load(Held(four.y >> 16))};
    }
}

// Without a bias there is none to read.
__device__ __forceinline__ float bias_at(const float* __restrict__ bias, int filter) {
    return BIAS ? bias[filter] : 0.0f;
}
// A sum with its bias, and ReLU, which NaN passes.
template <class T>
__device__ __forceinline__ T epilogue(T sum, float bias) {
    const T v = BIAS ? sum + bias : sum;
    return RELU && v < 0 ? T(0) : v;
}
