// A warp's sums of 16 filters and WIDE positions of padded rows on their way to outputs, or to this part
// of them. A lane has filters lane / 4 and 8 below, of every 8 positions 2 (lane % 4) and the next. At
// NHWC 8 lanes store 8 filters side by side. At NCHW 32 positions of 8 filters change hands in shared
// memory, and 32 lanes store 32 positions of a filter. Where a position's output lies is divided out once
// and then walked. WINOGRAD: a position is two outputs side by side, of which the second may not be there.
#pragma once
#include "stages/conv/tensor/packed.cuh"

constexpr int WARP = 32;
constexpr long long IMAGE_OUTPUTS = (long long)PIXELS * M;
constexpr int LINE = WARP + 8;                // floats from one filter's positions to the next one's
constexpr int LINES_BYTES = WRITES == NCHW ? 8 * LINE * sizeof(float) : 0;  // of a warp

static_assert(PITCH >= OUT_X && SLOT % PITCH == 0 && SLOT / PITCH >= OH, "an image holds its outputs");

using Out = Element<(SPLIT > 1 ? FP32 : DTYPE)>;

struct Position {
    static constexpr int ROWS = SLOT / PITCH;
    static constexpr long long BESIDE = WRITES == NHWC ? M : 1, X = ACROSS_X * BESIDE, Y = BESIDE * OW;
    int image, y, x;
    Out::Held* to;  // the output of its first filter; of no output, anywhere

    __device__ __forceinline__ Position(Out::Held* outputs, int position, int filter)
        : image(position / SLOT), y(position % SLOT / PITCH), x(position % PITCH),
          to(outputs + (image * IMAGE_OUTPUTS + y * Y + x * X + (long long)filter * apart())) {}
    // From a filter's output to the next filter's.
    __device__ __forceinline__ static constexpr int apart() { return WRITES == NHWC ? 1 : PIXELS; }
    __device__ __forceinline__ bool inside(int images) const {
        return image < images && y < OH && x < OUT_X;
    }
    // Whether its N-th output is there, where its first is.
    __device__ __forceinline__ bool has(int n) const { return n == 0 || OW % 2 == 0 || x < OW / 2; }
    // Its outputs of the K-th filter after its first; two of floats in one store where rows are even.
    __device__ __forceinline__ void put(const Out::Held (&held)[ACROSS_X], int k) const {
        Out::Held* own = to + k * (long long)apart();
        if constexpr (WINOGRAD && OW % 2 == 0 && sizeof(Out::Held) == sizeof(float)) {
            float2 both;
            both.x = held[0], both.y = held[ACROSS_X - 1];
            *reinterpret_cast<float2*>(own) = both;
        } else {
#pragma unroll
            for (int o = 0; o < ACROSS_X; ++o)
                if (has(o)) own[o * BESIDE] = held[o];
        }
    }
    // N positions on.
    template <int N>
    __device__ __forceinline__ void step() {
        constexpr int DOWN = N / PITCH, RIGHT = N % PITCH;
        image += DOWN / ROWS, y += DOWN % ROWS, x += RIGHT;
        to += DOWN / ROWS * IMAGE_OUTPUTS + DOWN % ROWS * Y + RIGHT * X;
        if (x >= PITCH) x -= PITCH, ++y, to += Y - PITCH * X;
        if (y >= ROWS) y -= ROWS, ++image, to += IMAGE_OUTPUTS - ROWS * Y;
    }
};

// What undoes the scales of an image and N filters, each in two steps as times_power has them.
template <int N>
struct Factors {
    float first[N], second[N];

    __device__ __forceinline__ void set(int exponent, const int (&out_scales)[N]) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const int k = (exponent == NO_EXPONENT ? 0 : exponent - FP16_EXPONENT) + out_scales[i];
            const int held = max(-2 * NORMAL, min(2 * NORMAL, k)), half = held / 2;
            const bool whole = u32(k + NORMAL) <= 2 * NORMAL;
            first[i] = power(whole ? k : half), second[i] = power(whole ? 0 : held - half);
        }
    }
};

// The largest outputs of lanes that are done with an image (`over`) to their images' `reached`. Every
// lane of a warp comes here.
__device__ __forceinline__ void keep(u32* __restrict__ reached, float most, int image, bool over) {
    for (u32 left = __ballot_sync(~0u, over); left;) {
        const int one = __shfl_sync(~0u, image, __ffs(left) - 1);
        const bool own = over && image == one;
        const u32 largest = __reduce_max_sync(~0u, own ? __float_as_uint(most) : 0);
        if (threadIdx.x % WARP == 0 && largest) atomicMax(reached + one, largest);
        left &= ~__ballot_sync(~0u, own);
    }
}

// `most` of what `of` is at and its image, where a walk of N positions comes to another image.
template <int N>
__device__ __forceinline__ bool walk(Position& of, u32* __restrict__ reached, float& most) {
    const int image = of.image;
    of.step<N>();
    if (SPLIT > 1) return false;
    const bool next = of.image != image;
    if (!__ballot_sync(~0u, next)) return false;
    keep(reached, most, image, next);
    if (next) most = 0.0f;
    return next;
}

// The larger size, which NaN does not change; where ReLU is applied NaN is the largest.
__device__ __forceinline__ float larger(float most, float v) {
    if (RELU) return __uint_as_float(max(__float_as_uint(most), size_bits(v)));
    return fmaxf(most, fabsf(v));
}

using Sums = float[ACROSS_X][WIDE / 2];  // of a position's outputs

struct Outputs {
    int position, filter, images;

    __device__ __forceinline__ void put(const Sums& sums, const int* __restrict__ exponents,
                                        const int* __restrict__ out_scales, const float* __restrict__ bias,
                                        Out::Held* __restrict__ y, u32* __restrict__ reached,
                                        float* lines) const {
        if (position >= images * SLOT) return;
        if constexpr (WRITES == NCHW) put_maps(sums, exponents, out_scales, bias, y, reached, lines);
        else put_pixels(sums, exponents, out_scales, bias, y, reached);
    }

private:
    // Output scale exponents of a warp's filters, and their range; biases.
    struct Epilogue {
        int scale[16], least = 0, largest = 0;
        float bias[16];
    };

    __device__ __forceinline__ static Out::Held stored(float sum, float bias) {
        return Out::store(SPLIT > 1 ? sum : epilogue(sum, bias));
    }
    __device__ __forceinline__ int exponent_at(const int* __restrict__ exponents, const Position& at) const {
        return SPLIT > 1 ? 0 : exponents[min(at.image, images - 1)];
    }
    __device__ __forceinline__ void put_pixels(const Sums& sums, const int* __restrict__ exponents,
                                               const int* __restrict__ out_scales,
                                               const float* __restrict__ bias,
                                               Out::Held* __restrict__ y,
                                               u32* __restrict__ reached) const {
        const int lane = threadIdx.x % WARP, own = filter + lane / 4;
        const int scale[2] = {out_scales[own], out_scales[own + 8]};
        const float more[2] = {bias_at(bias, own), bias_at(bias, own + 8)};
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            Position at(y, position + lane % 4 * 2 + e, own);
            Factors<2> factors;
            float most = 0.0f;
            factors.set(exponent_at(exponents, at), scale);
#pragma unroll
            for (int n = 0; n < WIDE / VEC; ++n) {
                if (n > 0 && walk<VEC>(at, reached, most)) factors.set(exponent_at(exponents, at), scale);
                if (!at.inside(images)) continue;
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    if (M % 64 != 0 && own + 8 * i >= M) continue;
#pragma unroll
                    for (int o = 0; o < ACROSS_X; ++o) {
                        if (!at.has(o)) continue;
                        float v = sums[o][4 * n + 2 * i + e];
                        if (SPLIT == 1) v = v * factors.first[i] * factors.second[i];
                        at.to[8 * i + o * Position::BESIDE] = stored(v, more[i]);
                        most = larger(most, v);
                    }
                }
            }
            if (SPLIT == 1) keep(reached, most, at.image, true);
        }
    }
    // 32 positions from the C-th on of 16 filters, scales undone by one power each where PLAIN.
    template <int C, bool PLAIN>
    __device__ __forceinline__ void put_lines(const Sums& sums, const Epilogue& own, int exponent,
                                              const Position& at, float& most, float* lines) const {
        const int lane = threadIdx.x % WARP;
        const bool there = C + lane < WIDE && at.inside(images);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float v[ACROSS_X][8];
#pragma unroll
            for (int o = 0; o < ACROSS_X; ++o) {
#pragma unroll
                for (int n = C / VEC; n < min(C + WARP, WIDE) / VEC; ++n)
                    *reinterpret_cast<float2*>(lines + lane / 4 * LINE + n * VEC - C + lane % 4 * 2) =
                        {sums[o][4 * n + 2 * i], sums[o][4 * n + 2 * i + 1]};
                __syncwarp();
#pragma unroll
                for (int k = 0; k < 8; ++k) v[o][k] = lines[k * LINE + lane];
                __syncwarp();
            }
            if (!there) continue;
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                if (M % 64 != 0 && filter + 8 * i + k >= M) continue;
                const int shift = exponent + own.scale[8 * i + k];
                Out::Held held[ACROSS_X];
#pragma unroll
                for (int o = 0; o < ACROSS_X; ++o) {
                    float& one = v[o][k];
                    if (SPLIT == 1) one = PLAIN ? one * power(shift) : times_power(one, shift);
                    held[o] = stored(one, own.bias[8 * i + k]);
                    if (at.has(o)) most = larger(most, one);
                }
                at.put(held, 8 * i + k);
            }
        }
    }
    template <int C>
    __device__ __forceinline__ void put_from(const Sums& sums, const Epilogue& own,
                                             const int* __restrict__ exponents, Position& at, float& most,
                                             u32* __restrict__ reached, float* lines) const {
        if constexpr (C < WIDE) {
            if (C > 0) walk<WARP>(at, reached, most);
            const int found = exponent_at(exponents, at), exponent = found == NO_EXPONENT ? 0 : found - FP16_EXPONENT;
            const bool plain = exponent + own.least >= -NORMAL && exponent + own.largest <= NORMAL;
            if (SPLIT > 1 || !__ballot_sync(~0u, !plain))
                put_lines<C, true>(sums, own, exponent, at, most, lines);
            else
                put_lines<C, false>(sums, own, exponent, at, most, lines);
            put_from<C + WARP>(sums, own, exponents, at, most, reached, lines);
        }
    }
    __device__ __forceinline__ void put_maps(const Sums& sums, const int* __restrict__ exponents,
                                             const int* __restrict__ out_scales,
                                             const float* __restrict__ bias,
                                             Out::Held* __restrict__ y, u32* __restrict__ reached,
                                             float* lines) const {
        Epilogue own;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            own.scale[i] = out_scales[filter + i], own.bias[i] = bias_at(bias, filter + i);
            own.least = min(own.least, own.scale[i]), own.largest = max(own.largest, own.scale[i]);
        }
        Position at(y, position + threadIdx.x % WARP, filter);
        float most = 0.0f;
        put_from<0>(sums, own, exponents, at, most, reached, lines);
        if (SPLIT == 1) keep(reached, most, at.image, true);
    }
};
