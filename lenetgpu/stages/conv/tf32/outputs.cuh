// Sums on their way out: factors of filters, stores, and a recheck in float64. A kernel includes it when
// it has said a block's BN filters and a warp's COLUMNS.
#pragma once
#include "stages/conv/tf32/coordinates.cuh"

constexpr float LEAST = 0x1p-102f;  // 2^20 times the largest error of a product
constexpr float LARGEST = 0x1.fffffep127f;
constexpr u32 INFINITY_BITS = 0x7f800000;

// The largest of the four lanes that share a row.
__device__ __forceinline__ u32 of_four(u32 v) {
    v = max(v, __shfl_sync(~0u, v, threadIdx.x % WARP ^ 1));
    return max(v, __shfl_sync(~0u, v, threadIdx.x % WARP ^ 2));
}

// A sum with its bias, and ReLU, which NaN passes.
__device__ __forceinline__ float epilogue(float sum, float bias) {
    const float v = BIAS ? sum + bias : sum;
    return RELU && v < 0.0f ? 0.0f : v;
}

struct Outputs {
    int first, filter, outputs;  // a warp's first row and filter

    __device__ __forceinline__ int row(int h) const {
        const int lane = threadIdx.x % WARP;
        return first + (NEIGHBOURS ? 2 * (lane / 4) + h : lane / 4 + 8 * h);
    }
    // Stores outputs, and rechecks rows whose outputs are not finite, or too small compared with
    // inputs that are finite (`reached`, the largest of each row).
    __device__ __forceinline__ void put(const float (&sums)[COLUMNS / 2], const float (&reached)[2],
                                        const float* factors, const float* __restrict__ bias,
                                        const float* __restrict__ x, const float* __restrict__ w,
                                        float* __restrict__ y) const {
        u32 most[2] = {0, 0}, counts = 0;
        float* to[2] = {address(y, 0), address(y, 1)};
        const bool there[2] = {row(0) < outputs, row(1) < outputs};
        const float* own = factors + threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n) {
            const float2 two = *reinterpret_cast<const float2*>(own + 8 * n);
            float2 more = {0.0f, 0.0f};
            if (BIAS)
                more = reinterpret_cast<const float2*>(bias + filter + threadIdx.x % 4 * 2)[4 * n];
            counts |= u32(two.x != 0.0f || two.y != 0.0f);
            float v[2][2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const float sum = sums[4 * n + 2 * h + j];
                    most[h] = max(most[h], __float_as_uint(fabsf(sum)));
                    v[h][j] = epilogue(sum * (j ? two.y : two.x), j ? more.y : more.x);
                }
            }
            store(to, there, v, n);
        }
        counts = of_four(counts);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float largest = __uint_as_float(of_four(__float_as_uint(reached[h])));
            const u32 found = of_four(most[h]);
            const float least = LEAST * K_SIZE * fmaxf(largest, 1.0f);
            const bool reaches = 4.0f * K_SIZE * largest >= LARGEST;  // sums on the way might not be finite
            const bool lost = reaches || found >= INFINITY_BITS || __uint_as_float(found) < least;
            const bool rechecked = RELU || __float_as_uint(largest) < INFINITY_BITS;  // ReLU of -infinity is 0
            const bool finite = largest > 0.0f && rechecked;
            if (counts && finite && lost && there[h]) recheck(bias, x, w, y, row(h));
        }
    }

private:
    __device__ __forceinline__ float* address(float* y, int h) const {
        const int own = row(h), column = filter + threadIdx.x % 4 * 2;
        if (WRITES == NHWC) return y + (long long)own * M + column;
        return y + ((long long)(own / PIXELS) * M + column) * PIXELS + own % PIXELS;
    }
    __device__ __forceinline__ bool held(int column) const { return M % BN == 0 || column < M; }
    __device__ __forceinline__ void store(float* const (&to)[2], const bool (&there)[2],
                                          const float (&v)[2][2], int n) const {
        constexpr long long NEXT = WRITES == NHWC ? 8 : 8ll * PIXELS;
        const int column = filter + 8 * n + threadIdx.x % 4 * 2;
        if constexpr (NEIGHBOURS && PIXELS % 2 == 0) {
#pragma unroll
            for (int j = 0; j < 2; ++j)
                if (held(column + j) && there[0])
                    *reinterpret_cast<float2*>(to[0] + n * NEXT + j * PIXELS) = {v[0][j], v[1][j]};
        } else {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if (!there[h]) continue;
                if constexpr (!NEIGHBOURS && M % 2 == 0) {
                    if (held(column)) *reinterpret_cast<float2*>(to[h] + n * NEXT) = {v[h][0], v[h][1]};
                } else {
#pragma unroll
                    for (int j = 0; j < 2; ++j)
                        if (held(column + j)) to[h][n * NEXT + j * (NEIGHBOURS ? PIXELS : 1)] = v[h][j];
                }
            }
        }
    }
    // This lane's filters of a row, in float64.
    __device__ __forceinline__ void recheck(const float* __restrict__ bias, const float* __restrict__ x,
                                            const float* __restrict__ w, float* __restrict__ y,
                                            int own) const {
        const int image = own / PIXELS, oy = own % PIXELS / OW, ox = own % OW;
#pragma unroll 1
        for (int n = 0; n < COLUMNS / 4; ++n) {
            const int column = filter + n / 2 * 8 + threadIdx.x % 4 * 2 + n % 2;
            if (column >= M) continue;
            double sum = 0;
#pragma unroll 1
            for (int k = 0; k < K_SIZE; ++k) {
                const int element = k / CH;
                const double v = input_at(x, image, oy * STRIDE - PAD + element / S,
                                          ox * STRIDE - PAD + element % S, k % CH);
                sum += v * w[size_t(k) * M + column];
            }
            if (BIAS) sum += bias[column];
            output_at(y, image, oy, ox, column) = RELU && sum < 0 ? 0.0f : float(sum);
        }
    }
};
