// Convolution at fp32 accuracy by mma.sync (sm_80) in one launch: three products of TF32 high and low into which
// inputs are split in registers, on their way from shared memory to the tensor cores. GEMM rows (M) are
// outputs of all images one after another, columns (N) filters, K filter elements of channels (NCHW) or
// channels of elements (NHWC). A block computes BM outputs x BN filters at a time and takes tiles in
// turn, a warp 16 TILES_M of the outputs x 8 TILES_N of the filters. All threads gather, STAGES - 1
// chunks of 32 ahead, those of the next tile too: inputs, zeros where there is none, 16 bytes a copy
// where four neighbours along K (NHWC) or of a map's pixels (NCHW, 1x1) are, else 4, and filters, [M /
// BN][chunk][part][8][BN][4]. Sums of 16 of K start from zero and are added to fp32 registers. Filters
// are scaled by powers of two to stay below 4 (`factors` undo it). Rows of outputs so small, or not
// finite, that TF32 may be inaccurate are recomputed in float64.
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/cluster.cuh"
#include "gpu/ptx/mma.cuh"
#include "gpu/ptx/shared2.cuh"
#include "gpu/ptx/tf32.cuh"
#include "stages/conv/tf32/coordinates.cuh"

constexpr int WARPS = WARPS_M * WARPS_N, THREADS = WARP * WARPS;
constexpr int ROWS = 16 * TILES_M, BM = ROWS * WARPS_M;
constexpr int COLUMNS = 8 * TILES_N, BN = COLUMNS * WARPS_N;
constexpr bool QUADS = PIXELWISE ? CH % 4 == 0 : POINTWISE && STRIDE == 1 && PIXELS % 4 == 0;
constexpr int INPUTS = BM * CHUNK, PART = VECS * BN * VEC, FILTERS = 2 * PART;  // floats
constexpr int STAGE = INPUTS + FILTERS;
constexpr int ACROSS = MP / BN;  // tiles of the same rows follow one another
constexpr int DEEP = 2;          // steps whose sums start from zero
constexpr int AT_ONCE = 2;       // columns' tiles that are multiplied side by side
constexpr int TOGETHER = 4;      // that ptxas may order as it likes: of more, registers hold too little
constexpr int UNROLL = 2;

static_assert(SHARED_BYTES == 4 * STAGES * STAGE, "the launcher's");
static_assert(FILTERS % (VEC * THREADS) == 0, "threads copy as many filters each");
static_assert(TILES_N % AT_ONCE == 0 && STAGES >= 2 && BM % WARP == 0, "all tiles, and a chunk ahead");
static_assert(MP % BN == 0 && MP >= M, "filters are padded to whole blocks");

// Of a chunk's inputs that of a row and of a product: of pixels [row][k], of maps [k][row], vectors and
// eights of rows in an order that spreads over banks; neighbours in memory of outputs lie 8 apart in a
// fragment.
__device__ __forceinline__ float* placed(float* inputs, int row, int k) {
    if (!PIXELWISE) return inputs + k * BM + (row ^ k % 4 * 8);
    const int at = NEIGHBOURS ? row / 16 * 16 + row % 2 * 8 + row % 16 / 2 : row;
    return inputs + at * CHUNK + (k / VEC ^ at % 8) * VEC + k % VEC;
}

#include "stages/conv/tf32/gather.cuh"
#include "stages/conv/tf32/outputs.cuh"

// Of maps a thread has a row, or four, and goes through products; of pixels it has a product, or four, and
// goes through its warp's rows, whose corners lanes keep.
constexpr int WIDTH = QUADS ? VEC : 1, SHARE = BM / WARPS;
constexpr int BESIDE = PIXELWISE ? WARP * WIDTH / CHUNK : THREADS * WIDTH / BM;  // rows, or products, at once
static_assert(BESIDE > 0 && CHUNK % BESIDE == 0 && SHARE % BESIDE == 0 && SHARE <= WARP, "whole turns");

__device__ __forceinline__ int corner_row() {
    if (PIXELWISE) return threadIdx.x / WARP * SHARE + threadIdx.x % SHARE;
    return threadIdx.x % (BM / WIDTH) * WIDTH;
}
__device__ __forceinline__ void gather(float* to, const float* __restrict__ x, const Corner& own, int chunk) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if constexpr (PIXELWISE) {
        const int k = lane * WIDTH % CHUNK, before = lane * WIDTH / CHUNK;
        const FilterElement element(chunk * CHUNK + k);
#pragma unroll UNROLL
        for (int i = 0; i < SHARE; i += BESIDE)
            copy_input(placed(to, warp * SHARE + i + before, k), x, of_lane(own, i + before), element);
    } else {
        const int before = threadIdx.x / (BM / WIDTH);
#pragma unroll UNROLL
        for (int i = 0; i < CHUNK; i += BESIDE)
            copy_input(placed(to, corner_row(), i + before), x, own, FilterElement(chunk * CHUNK + i + before));
    }
}

// What is copied next.
struct Prefetch {
    Corner own;
    int tile, chunk = 0, stage = 0;

    __device__ __forceinline__ explicit Prefetch(int outputs)
        : own(blockIdx.x / ACROSS * BM + corner_row(), outputs), tile(blockIdx.x) {}
    __device__ __forceinline__ void start(float* memory, const float* __restrict__ x,
                                          const float* __restrict__ filters, int tiles, int outputs) {
        if (tile < tiles) {
            float* const to = memory + stage * STAGE;
            const float* from = filters + (size_t(tile % ACROSS) * CHUNKS + chunk) * FILTERS;
#pragma unroll
            for (int i = 0; i < FILTERS; i += VEC * THREADS)
                ptx::copy16(to + INPUTS + VEC * threadIdx.x + i, from + VEC * threadIdx.x + i);
            gather(to, x, own, chunk);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
            if (++chunk == CHUNKS) {
                chunk = 0, tile += gridDim.x;
                own = Corner(tile / ACROSS * BM + corner_row(), outputs);
            }
        }
        ptx::copy_commit();
    }
};

// What a lane holds of 16 rows' inputs of some steps, split; rows and columns as multiply_16x8x8 has them.
struct Operand {
    u32 high[DEEP][4], low[DEEP][4];

    // `reached`: the largest of each row so far; infinity counts, NaN does not.
    __device__ __forceinline__ void load(u32 inputs, int first, int step, float (&reached)[2]) {
        const int lane = threadIdx.x % WARP;
        const int row = first + (PIXELWISE ? lane % 16 : NEIGHBOURS ? lane / 4 * 2 : lane / 4);
        const u32 from =
            inputs + (PIXELWISE ? 4 * CHUNK * row + VEC_BYTES * (lane / 16 ^ lane % 8 ^ 2 * step)
                                : 4 * ((CORE * step + lane % 4) * BM + (row ^ lane % 4 * 8)));
#pragma unroll
        for (int s = 0; s < DEEP; ++s) {
            u32 v[4];
            if constexpr (PIXELWISE) {
                const uint4 four = ptx::load_matrices(from ^ 2 * VEC_BYTES * s);
                v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
            } else {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const u32 at = from + 4 * (4 * (2 * s + i) * BM);
                    if constexpr (NEIGHBOURS) {
                        const uint2 both = ptx::load_shared2(at);
                        v[2 * i] = both.x, v[2 * i + 1] = both.y;
                    } else {
                        v[2 * i] = ptx::load_shared(at), v[2 * i + 1] = ptx::load_shared(at ^ 4 * 8);
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float one = __uint_as_float(v[i]);
                const Split split = split_tf32(one);
                high[s][i] = split.high, low[s][i] = split.low;
                reached[i % 2] = fmaxf(reached[i % 2], fabsf(one));
            }
        }
    }
};

// Filters of eight columns, for two steps each.
struct Columns {
    uint4 part[2][DEEP / 2];

    __device__ __forceinline__ void load(u32 filters, int column, int step) {
        const int lane = threadIdx.x % WARP;
        const u32 from = filters + VEC_BYTES * ((2 * step + lane / 8) * BN + column + lane % 8);
#pragma unroll
        for (int p = 0; p < 2; ++p)
#pragma unroll
            for (int i = 0; i < DEEP / 2; ++i)
                part[p][i] = ptx::load_matrices(from + 4 * p * PART + VEC_BYTES * 4 * i * BN);
    }
    __device__ __forceinline__ uint2 of(int p, int s) const {
        return s % 2 ? ptx::high2(part[p][s / 2]) : ptx::low2(part[p][s / 2]);
    }
};

__device__ __forceinline__ void add_product(float (&sum)[4], const u32 (&a)[4], uint2 b) {
    multiply_16x8x8(sum, a[0], a[1], a[2], a[3], b.x, b.y);
}

// A warp's part of a tile.
struct Turn {
    float sums[TILES_M][COLUMNS / 2] = {}, reached[TILES_M][2] = {};

    // `never` is false, and ptxas does not know.
    __device__ __forceinline__ void add(u32 stage, int row, int column, bool never) {
#pragma unroll 1
        for (int step = 0; step < STEPS; step += DEEP) {
            Operand inputs[TILES_M];
#pragma unroll
            for (int m = 0; m < TILES_M; ++m) inputs[m].load(stage, row + 16 * m, step, reached[m]);
#pragma unroll
            for (int n = 0; n < TILES_N; n += AT_ONCE) {
                if (n > 0 && n % TOGETHER == 0 && never) break;
                Columns filters[AT_ONCE];
#pragma unroll
                for (int i = 0; i < AT_ONCE; ++i)
                    filters[i].load(stage + 4 * INPUTS, column + 8 * (n + i), step);
                multiply(inputs, filters, n);
            }
        }
    }

private:
    // Products of some steps, small ones first, from zero.
    __device__ __forceinline__ void multiply(const Operand (&inputs)[TILES_M],
                                             const Columns (&filters)[AT_ONCE], int n) {
        float sum[TILES_M][AT_ONCE][4] = {};
        const auto each = [](const auto& f) {
#pragma unroll
            for (int s = 0; s < DEEP; ++s)
#pragma unroll
                for (int m = 0; m < TILES_M; ++m)
#pragma unroll
                    for (int i = 0; i < AT_ONCE; ++i) f(s, m, i);
        };
        each([&](int s, int m, int i) { add_product(sum[m][i], inputs[m].low[s], filters[i].of(0, s)); });
        each([&](int s, int m, int i) { add_product(sum[m][i], inputs[m].high[s], filters[i].of(1, s)); });
        each([&](int s, int m, int i) { add_product(sum[m][i], inputs[m].high[s], filters[i].of(0, s)); });
#pragma unroll
        for (int m = 0; m < TILES_M; ++m)
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
                for (int e = 0; e < 4; ++e) sums[m][4 * (n + i) + e] += sum[m][i][e];
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    tf32_mma(const float* __restrict__ x, const float* __restrict__ filters,
             const float* __restrict__ factors, const float* __restrict__ bias,
             const float* __restrict__ w, float* __restrict__ y, int outputs) {
    extern __shared__ __align__(128) unsigned char memory[];
    float* const stages = reinterpret_cast<float*>(memory);
    const int tiles = (outputs + BM - 1) / BM * ACROSS;
    const int warp = threadIdx.x / WARP;
    const int row = warp % WARPS_M * ROWS, column = warp / WARPS_M * COLUMNS;
    ptx::wait_for_grid();
    ptx::start_next_grid();
    Prefetch prefetch(outputs);
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; ++i) prefetch.start(stages, x, filters, tiles, outputs);
    int stage = 0;
#pragma unroll 1
    for (int n = blockIdx.x; n < tiles; n += gridDim.x) {
        Turn turn;
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            ptx::copy_wait<STAGES - 2>();
            __syncthreads();
            prefetch.start(stages, x, filters, tiles, outputs);
            turn.add(ptx::shared(stages + stage * STAGE), row, column, outputs < 0);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        const int filter = n % ACROSS * BN + column;
#pragma unroll
        for (int m = 0; m < TILES_M; ++m) {
            const Outputs out = {n / ACROSS * BM + row + 16 * m, filter, outputs};
            out.put(turn.sums[m], turn.reached[m], factors + filter, bias, x, w, y);
        }
    }
}
