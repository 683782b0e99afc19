// Convolution of single-channel maps (Pascal paper, section 3.1).
// A block holds a part of the map and some filters in shared memory. METHOD 1: its filters stay and
// PIECES parts of its rows stream by; METHOD 2: its rows stay and PIECES parts of its filters do,
// the next piece being fetched while this one is used. One piece is the paper's bulk loading.
// A thread computes PX rows of PC neighbours in x, in FM maps; a warp, neighbours in x.
// x (n, 1, H, W), w (R, S, 1, M), y (n, M, OH, OW).
#include "gpu/ptx/async.cuh"
#include "stages/conv/shape.cuh"

constexpr int IN_ROWS = (PART_ROWS - 1) * STRIDE + R;
constexpr int VECTOR = W % 4 == 0 ? 4 : 1;
constexpr int LEFT = PAD > 0 ? (PAD + 3) / 4 * 4 : 0;  // keeps x = 0 on 16 bytes
constexpr int PITCH = (LEFT + W + PAD + 3) / 4 * 4;
constexpr int MAP = IN_ROWS * PITCH;
constexpr int FILTER_VECTOR = M % 4 == 0 && FM % 4 == 0 ? 4 : 1;
constexpr int FILTER_SET = R * S * PART_FILTERS;
constexpr int MAPS = METHOD == 1 && PIECES > 1 ? 2 : 1;
constexpr int FILTER_SETS = METHOD == 2 && PIECES > 1 ? 2 : 1;
constexpr int COLUMN = (PX - 1) * STRIDE + R;
constexpr int ACROSS = OW / PC;  // threads of a line
constexpr int POSITIONS = PART_ROWS / PX * ACROSS;
constexpr int LANES = (POSITIONS + 31) / 32 * 32;

static_assert(CH == 1, "one channel");
static_assert(READS == NCHW && WRITES == NCHW, "planes are read and written");
static_assert(METHOD == 1 || METHOD == 2, "the paper has two methods");
static_assert(PC == 1 || (PC == 2 && STRIDE == 1 && OW % 2 == 0 && PAD % 2 == 0),
              "pairs of outputs and of pixels lie on 8 bytes");
static_assert(PART_ROWS % PX == 0 && PART_FILTERS % FM == 0, "a thread's outputs must tile the part");
static_assert(PART_FILTERS % 4 == 0 && (FM % 4 == 0 || FM < 4), "filters are read four at a time");
static_assert(4 * (MAPS * MAP + FILTER_SETS * FILTER_SET) == SHARED_BYTES, "launcher differs");

__device__ __forceinline__ void fetch_map(float* to, const float* __restrict__ image, int y0) {
    const int top = y0 * STRIDE - PAD;
    for (int i = threadIdx.x; i < IN_ROWS * (W / VECTOR); i += THREADS) {
        const int row = i / (W / VECTOR), col = i % (W / VECTOR) * VECTOR;
        const bool inside = top + row >= 0 && top + row < H;
        const float* from = image + (inside ? (top + row) * W + col : 0);
        float* target = to + row * PITCH + LEFT + col;
        if (VECTOR == 4) ptx::copy16_or_zero(target, from, inside);
        else ptx::copy4_or_zero(target, from, inside);
    }
}

__device__ __forceinline__ void fetch_filters(float* to, const float* __restrict__ w, int m0) {
    for (int i = threadIdx.x; i < FILTER_SET / FILTER_VECTOR; i += THREADS) {
        const int element = i / (PART_FILTERS / FILTER_VECTOR);
        const int m = m0 + i % (PART_FILTERS / FILTER_VECTOR) * FILTER_VECTOR;
        const float* from = w + (m < M ? element * M + m : 0);
        if (FILTER_VECTOR == 4) ptx::copy16_or_zero(to + i * FILTER_VECTOR, from, m < M);
        else ptx::copy4_or_zero(to + i, from, m < M);
    }
}

// Zeros left and right of the rows, which no copy writes.
__device__ __forceinline__ void clear_margins(float* maps) {
    if constexpr (PAD > 0) {
        constexpr int MARGIN = PITCH - W;
        for (int i = threadIdx.x; i < MAPS * IN_ROWS * MARGIN; i += THREADS) {
            const int col = i % MARGIN;
            maps[i / MARGIN * PITCH + (col < LEFT ? col : W + col)] = 0.0f;
        }
    }
}

__device__ __forceinline__ void load_filters(float (&f)[FM], const float* from) {
    if constexpr (FM % 4 == 0) {
#pragma unroll
        for (int k = 0; k < FM; k += 4)
            *reinterpret_cast<float4*>(f + k) = *reinterpret_cast<const float4*>(from + k);
    } else {
#pragma unroll
        for (int k = 0; k < FM; ++k) f[k] = from[k];
    }
}

using Outputs = float[PX][PC][FM];

// The elements of filter column s: `column` holds PC columns of pixels, the first below element s.
template <typename Pixel>
__device__ __forceinline__ void multiply_column(Outputs& sum, const float* filters, int s,
                                                const Pixel& pixel) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
        float f[FM];
        load_filters(f, filters + (r * S + s) * PART_FILTERS);
#pragma unroll
        for (int p = 0; p < PX; ++p)
#pragma unroll
            for (int c = 0; c < PC; ++c)
#pragma unroll
                for (int k = 0; k < FM; ++k)
                    sum[p][c][k] = fmaf(pixel(p * STRIDE + r, c), f[k], sum[p][c][k]);
    }
}

// Unrolled where registers are enough: ptxas loads all elements of an unrolled filter first.
constexpr bool UNROLLED = R * S <= 9 || (PC == 1 && R * S <= 25 && THREADS <= 256);

__device__ __forceinline__ void multiply(Outputs& sum, const float* filters, const float* map) {
    if constexpr (PC == 2 && R * S <= 9) {
        float window[COLUMN][(S + 2) / 2 * 2];
#pragma unroll
        for (int k = 0; k < COLUMN; ++k)
#pragma unroll
            for (int s = 0; s < S + 1; s += 2)
                *reinterpret_cast<float2*>(&window[k][s]) =
                    *reinterpret_cast<const float2*>(map + k * PITCH + s);
#pragma unroll
        for (int s = 0; s < S; ++s)
            multiply_column(sum, filters, s, [&](int row, int c) { return window[row][s + c]; });
    } else {
        float column[PC][COLUMN];
#pragma unroll
        for (int k = 0; k < COLUMN; ++k) column[PC - 1][k] = PC == 2 ? map[k * PITCH] : 0.0f;
#pragma unroll(UNROLLED ? S : 1)
        for (int s = 0; s < S; ++s) {
#pragma unroll
            for (int k = 0; k < COLUMN; ++k) {
                if (PC == 2) column[0][k] = column[PC - 1][k];
                column[PC - 1][k] = map[k * PITCH + s + PC - 1];
            }
            multiply_column(sum, filters, s, [&](int row, int c) { return column[c][row]; });
        }
    }
}

__device__ __forceinline__ void convolve(const float* map, const float* filters,
                                         float* __restrict__ y, int y0, int m0) {
    for (int item = threadIdx.x; item < LANES * (PART_FILTERS / FM); item += THREADS) {
        const int position = item % LANES;
        const int group = item / LANES * FM;
        if (position >= POSITIONS) continue;
        const int row = position / ACROSS * PX, col = position % ACROSS * PC;
        Outputs sum = {};
        multiply(sum, filters + group, map + row * STRIDE * PITCH + LEFT - PAD + col * STRIDE);
        const int m = m0 + group;
        float* out = y + (size_t(m) * OH + y0 + row) * OW + col;
#pragma unroll
        for (int k = 0; k < FM; ++k)
#pragma unroll
            for (int p = 0; p < PX; ++p) {
                if (m + k >= M || y0 + row + p >= OH) continue;
                float* to = out + (size_t(k) * OH + p) * OW;
                if constexpr (PC == 1) *to = sum[p][0][k];
                else *reinterpret_cast<float2*>(to) = make_float2(sum[p][0][k], sum[p][1][k]);
            }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv_single(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y) {
    extern __shared__ __align__(16) float shared[];
    float* maps = shared;
    float* filters = shared + MAPS * MAP;
    const int part = blockIdx.x % (ROW_PARTS * FILTER_PARTS);
    const size_t n = blockIdx.x / (ROW_PARTS * FILTER_PARTS);
    const float* image = x + n * (H * W);
    y += n * (size_t(M) * PIXELS);
    const int y0 = part % ROW_PARTS * PART_ROWS * (METHOD == 1 ? PIECES : 1);
    const int m0 = part / ROW_PARTS * PART_FILTERS * (METHOD == 2 ? PIECES : 1);

    clear_margins(maps);
    fetch_map(maps, image, y0);
    fetch_filters(filters, w, m0);
    ptx::copy_commit();
    for (int piece = 0; piece < PIECES; ++piece) {
        const int here = piece % 2, next = (piece + 1) % 2;
        const int y1 = y0 + (METHOD == 1 ? piece * PART_ROWS : 0);
        const int m1 = m0 + (METHOD == 2 ? piece * PART_FILTERS : 0);
        if (piece + 1 < PIECES) {
            if (METHOD == 1) fetch_map(maps + next * MAP, image, y1 + PART_ROWS);
            else fetch_filters(filters + next * FILTER_SET, w, m1 + PART_FILTERS);
            ptx::copy_commit();
            ptx::copy_wait<1>();
        } else {
            ptx::copy_wait<0>();
        }
        __syncthreads();
        convolve(maps + (MAPS > 1 ? here * MAP : 0),
                 filters + (FILTER_SETS > 1 ? here * FILTER_SET : 0), y, y1, m1);
        if (piece + 1 < PIECES) __syncthreads();
    }
}
