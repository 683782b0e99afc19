// What products share: chunks of rows and filters on their way to shared memory, sums on theirs to
// outputs. BM rows x BN columns a block; a chunk is a row of 8 vectors of 16 bytes, the high parts of
// 8 / PARTS of K, then the low ones; vector q of row r lies at q ^ r % 8.
#pragma once
#include "gpu/ptx/async.cuh"
#include "stages/conv/tensor/packed.cuh"

constexpr int ROW = 8;                        // vectors
constexpr int ROW_BYTES = ROW * VEC_BYTES;
constexpr int STAGE_BYTES = (BM + BN) * ROW_BYTES;
constexpr int CHUNK = ROW / PARTS;            // vectors of K
constexpr int STEPS = CHUNK / 2;              // of 16 of K
constexpr int K_VECS = R * ELEMENTS_X * GROUPS;
constexpr int CHUNKS = (K_VECS + CHUNK - 1) / CHUNK;
constexpr int SHARE = (CHUNKS + SPLIT - 1) / SPLIT;
constexpr int COPY_ROWS = THREADS / ROW;      // that all threads copy at once
constexpr int OWN_ROWS = BM / COPY_ROWS;
constexpr bool INSIDE = PAD == 0;             // no window leaves its image
constexpr bool NEAR = H + 2 * PAD < 1 << 15 && WP + 2 * PAD < 1 << 15;

static_assert(SHARED_BYTES == STAGES * STAGE_BYTES, "the launcher's pipeline differs");
static_assert(BM % COPY_ROWS == 0 && BN % COPY_ROWS == 0, "a pass of copies takes whole rows");
static_assert(MP % BN == 0 && MP >= M, "filters are padded to whole blocks");
static_assert((CHUNKS + SHARE - 1) / SHARE == SPLIT, "every part has chunks");

__device__ __forceinline__ int swizzled(int row, int q) {
    return row * ROW_BYTES + (q ^ row % ROW) * VEC_BYTES;
}

// Where a window begins, row and column; in one register where that holds them. Nowhere: no row.
template <bool SHORT>
struct Corner {
    static constexpr int NOWHERE = -(1 << 30);
    int y, col;

    __device__ __forceinline__ void set(int row, int column) { y = row, col = column; }
    __device__ __forceinline__ int row() const { return y; }
    __device__ __forceinline__ int column() const { return col; }
};
template <>
struct Corner<true> {
    static constexpr int NOWHERE = -(1 << 15);
    u32 both;

    __device__ __forceinline__ void set(int row, int column) {
        both = u32(column) << 16 | (u32(row) & 0xffff);
    }
    __device__ __forceinline__ int row() const { return short(both & 0xffff); }
    __device__ __forceinline__ int column() const { return int(both) >> 16; }
};

// What a thread copies of a chunk: vector q of rows `row`, `row` + COPY_ROWS and so on.
struct Copies {
    const int q = threadIdx.x % ROW, row = threadIdx.x / ROW;
    const uint4* images;
    const uint4* filters;
    int at[OWN_ROWS];  // the pixel where the window begins
    Corner<NEAR> corner[OWN_ROWS];

    __device__ __forceinline__ Copies(const uint4* images, const uint4* filters, int m0,
                                      int rows, int n0)
        : images(images), filters(filters + (n0 + row) * ROW + q) {
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i) {
            const int n = m0 + row + i * COPY_ROWS, pixel = n % PIXELS;
            const int y = pixel / OW * STRIDE - PAD, col = pixel % OW * STEP_X - PAD_X;
            at[i] = (n / PIXELS * H + y) * WP + col;
            corner[i].set(n < rows ? y : Corner<NEAR>::NOWHERE, col);
        }
    }
    __device__ __forceinline__ void start(unsigned char* stage, int chunk) const {
        const int k = chunk * CHUNK + q % CHUNK, rs = k / GROUPS, r = rs / ELEMENTS_X, s = rs % ELEMENTS_X;
        const int step = r * WP + s, rest = q / CHUNK * GROUPS + k % GROUPS;
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i) {
            const int y = corner[i].row();
            const bool inside = INSIDE ? y >= 0
                                       : u32(y + r) < H && (FOLD || u32(corner[i].column() + s) < WP);
            const bool there = k < K_VECS && inside;
            const long long from = there ? (long long)(at[i] + step) * (GROUPS * PARTS) + rest : 0;
            ptx::copy16_or_zero(reinterpret_cast<float*>(stage + swizzled(row + i * COPY_ROWS, q)),
                                reinterpret_cast<const float*>(images + from), there);
        }
        const uint4* from = filters + size_t(chunk) * MP * ROW;
#pragma unroll
        for (int i = 0; i < BN / COPY_ROWS; ++i) {
            const int at = (BM + row + i * COPY_ROWS) * ROW_BYTES + q * VEC_BYTES;
            ptx::copy16(reinterpret_cast<float*>(stage + at),
                        reinterpret_cast<const float*>(from + i * COPY_ROWS * ROW));
        }
    }
};

// A block's tile and part of K; blocks of the same rows follow one another.
struct Block {
    static constexpr int ACROSS = MP / BN;
    const int part = blockIdx.x / ACROSS % SPLIT;
    const int m0 = blockIdx.x / (ACROSS * SPLIT) * BM;
    const int n0 = blockIdx.x % ACROSS * BN;
    const int first = part * SHARE, end = min(CHUNKS, part * SHARE + SHARE);
};

// A lane's outputs of TILES_M tiles, ROWS_APART rows from each other: rows lane / 4 and 8 below, and
// of every 8 columns 2 (lane % 4) and the next.
using Sums = float[TILES_M][4 * TILES_N];
using Out = Element<(SPLIT > 1 ? FP32 : DTYPE)>;
constexpr bool PAIRED = WRITES == NHWC && sizeof(Out::Held) == 2 && M % 2 == 0;  // one store of two

struct Outputs {
    int m0, n0, rows, part;
    const float* bias;

    __device__ __forceinline__ int row_of(int i) const {
        return m0 + i / 2 * ROWS_APART + i % 2 * 8 + threadIdx.x % WARP / 4;
    }
    __device__ __forceinline__ int column_of(int n, int e) const {
        return n0 + n * 8 + threadIdx.x % 4 * 2 + e;
    }
    // Outputs, or where K is split this part of them, in the same order.
    __device__ __forceinline__ void put(const Sums& sums, const int* __restrict__ exponents,
                                        const int* __restrict__ out_scales, Held* __restrict__ y,
                                        float* __restrict__ parts, u32* __restrict__ reached) const {
        if (m0 >= rows) return;
        Out::Held* to = reinterpret_cast<Out::Held*>(y);
        if (SPLIT > 1) to = reinterpret_cast<Out::Held*>(parts + size_t(part) * rows * M);
        u32 most[2 * TILES_M];
        int image[2 * TILES_M];
#pragma unroll
        for (int i = 0; i < 2 * TILES_M; ++i) {
            const int row = min(row_of(i), rows - 1), pixel = row % PIXELS;
            image[i] = row / PIXELS, most[i] = 0;
            const int exponent = SPLIT > 1 ? 0 : exponents[image[i]];
#pragma unroll
            for (int n = 0; n < TILES_N; ++n) {
                u32 pair = 0;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int column = column_of(n, e);
                    if (row_of(i) >= rows || column >= M) continue;
                    const float sum = sums[i / 2][4 * n + i % 2 * 2 + e];
                    const float v = SPLIT > 1 ? sum : unscaled(sum, exponent, out_scales[column]);
                    Out::Held& one =
                        to[offset<WRITES, OH, OW, M>(image[i], pixel / OW, pixel % OW, column)];
                    const Out::Held held = Out::store(SPLIT > 1 ? v : epilogue(v, bias_at(bias, column)));
                    if (PAIRED) pair |= u32(held) << 16 * e;
                    if (!PAIRED) one = held;
                    else if (e == 1) *reinterpret_cast<u32*>(&one - 1) = pair;
                    most[i] = max(most[i], size_or_none(v));
                }
            }
        }
        if (SPLIT > 1) return;
        const int last = min(m0 + (TILES_M - 1) * ROWS_APART + 16, rows) - 1;
        keep_largest(reached, most, image, m0 / PIXELS, last / PIXELS);
    }
};
