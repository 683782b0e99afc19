// Winograd's convolution F(OUTPUTS x OUTPUTS, R x R): tiles of POINTS x POINTS inputs give OUTPUTS x
// OUTPUTS outputs by POINTS^2 products a channel instead of OUTPUTS^2 R^2 (Lavin & Gray,
// arXiv 1509.09308). Transform points are 0, pairs +-a, infinity, so a pair's rows share even and odd parts.
// winograd_input: a thread transforms one tile of one channel: x NCHW -> v [point][n][c][tile].
// winograd_output: one tile of one map: [point][n][m][tile] -> y NCHW.
// Between them POINTS^2 products of product.cuh. Coefficients come from Python as FROM_INPUT (B^T)
// and TO_OUTPUT (A^T). The tiles of an image are padded to a multiple of four.
#include "gpu/ptx/cluster.cuh"
#include "stages/conv/shape.cuh"

constexpr int TILES_X = (OW + OUTPUTS - 1) / OUTPUTS;
constexpr int TILES = TILES_X * ((OH + OUTPUTS - 1) / OUTPUTS);
constexpr int ROOM = (TILES + 3) / 4 * 4;
static_assert(R == S && STRIDE == 1, "tiles overlap by the filter's size less one");
static_assert(POINTS == OUTPUTS + R - 1 && POINTS % 2 == 0, "0, pairs, infinity");
static_assert(READS == NCHW && WRITES == NCHW, "maps lie one after another");

#ifdef ENTRY_winograd_input
__device__ __forceinline__ void from_input(const float (&d)[POINTS], float (&v)[POINTS]) {
    constexpr float B[POINTS][POINTS] = FROM_INPUT;
#pragma unroll
    for (int i = 0; i < POINTS; ++i) v[i] = 0.0f;
#pragma unroll
    for (int k = 0; k < POINTS; ++k) {
        if (k % 2 == 0) v[0] = fmaf(B[0][k], d[k], v[0]);
        else v[POINTS - 1] = fmaf(B[POINTS - 1][k], d[k], v[POINTS - 1]);
    }
#pragma unroll
    for (int i = 1; i + 1 < POINTS; i += 2) {
        float even = 0.0f, odd = 0.0f;
#pragma unroll
        for (int k = 1; k + 1 < POINTS; ++k) {
            if (k % 2 == 0) even = fmaf(B[i][k], d[k], even);
            else odd = fmaf(B[i][k], d[k], odd);
        }
        v[i] = even + odd;
        v[i + 1] = even - odd;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    winograd_input(const float* __restrict__ x, float* __restrict__ v, int images) {
    ptx::wait_for_grid();
    ptx::start_next_grid();
    const long long all = static_cast<long long>(images) * CH * ROOM;
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= all) return;
    const int tile = i % ROOM;
    const long long map = i / ROOM;
    const int y0 = tile / TILES_X * OUTPUTS - PAD, x0 = tile % TILES_X * OUTPUTS - PAD;
    x += map * (H * W) + y0 * W + x0;
    float d[POINTS][POINTS];
#pragma unroll
    for (int r = 0; r < POINTS; ++r)
#pragma unroll
        for (int c = 0; c < POINTS; ++c) {
            const bool in = tile < TILES && unsigned(y0 + r) < H && unsigned(x0 + c) < W;
            d[r][c] = in ? x[r * W + c] : 0.0f;
        }
    float rows[POINTS][POINTS];
#pragma unroll
    for (int r = 0; r < POINTS; ++r) from_input(d[r], rows[r]);
#pragma unroll
    for (int c = 0; c < POINTS; ++c) {
        float column[POINTS], out[POINTS];
#pragma unroll
        for (int r = 0; r < POINTS; ++r) column[r] = rows[r][c];
        from_input(column, out);
#pragma unroll
        for (int r = 0; r < POINTS; ++r) v[(r * POINTS + c) * all + i] = out[r];
    }
}
#endif

#ifdef ENTRY_winograd_output
__device__ __forceinline__ void to_output(const float (&m)[POINTS], float (&y)[OUTPUTS]) {
    constexpr float A[OUTPUTS][POINTS] = TO_OUTPUT;
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i) {
        y[i] = i == 0 ? m[0] : i == OUTPUTS - 1 ? m[POINTS - 1] : 0.0f;
#pragma unroll
        for (int k = 1; k + 1 < POINTS; k += 2)
            y[i] = fmaf(A[i][k], i % 2 == 0 ? m[k] + m[k + 1] : m[k] - m[k + 1], y[i]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    winograd_output(const float* __restrict__ products, float* __restrict__ y, int images) {
    ptx::wait_for_grid();
    ptx::start_next_grid();
    const long long all = static_cast<long long>(images) * M * ROOM;
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    const int tile = i % ROOM;
    if (i >= all || tile >= TILES) return;
    const int y0 = tile / TILES_X * OUTPUTS, x0 = tile % TILES_X * OUTPUTS;
    y += i / ROOM * PIXELS + y0 * OW + x0;
    float rows[POINTS][OUTPUTS];
#pragma unroll
    for (int r = 0; r < POINTS; ++r) {
        float m[POINTS];
#pragma unroll
        for (int c = 0; c < POINTS; ++c) m[c] = products[(r * POINTS + c) * all + i];
        to_output(m, rows[r]);
    }
    float out[OUTPUTS][OUTPUTS];
#pragma unroll
    for (int c = 0; c < OUTPUTS; ++c) {
        float column[POINTS], sums[OUTPUTS];
#pragma unroll
        for (int r = 0; r < POINTS; ++r) column[r] = rows[r][c];
        to_output(column, sums);
#pragma unroll
        for (int r = 0; r < OUTPUTS; ++r) out[r][c] = sums[r];
    }
#pragma unroll
    for (int r = 0; r < OUTPUTS; ++r) {
        if (y0 + r >= OH) return;
#pragma unroll
        for (int c = 0; c < OUTPUTS; c += 2) {
            float* to = y + r * OW + c;
            if (OW % 2 == 0) {
                if (x0 + c < OW) *reinterpret_cast<float2*>(to) = make_float2(out[r][c], out[r][c + 1]);
            } else {
                if (x0 + c < OW) to[0] = out[r][c];
                if (x0 + c + 1 < OW) to[1] = out[r][c + 1];
            }
        }
    }
}
#endif
