// The frame of a tiled product W'[M][K_SIZE] x X[K_SIZE][columns], X a convolution's input that is
// never unrolled in memory; a column is an output pixel, of all images one after another.
// A block computes BM maps x BN columns of K_SIZE/SPLIT products from a pipeline of STAGES chunks of BK
// rows in shared memory, filled by cp.async (zeros where the window leaves the image). WARPS_K
// groups of warps share each chunk along k, and SPLIT blocks K; their sums are added in shared
// memory: across blocks through the cluster's (sm_90), or through `parts` and a counter, the last
// block adding (before). WALKS: few blocks are resident, each takes tile after tile.
// `Sums` holds a thread's sums: clear, multiply, bound, finish, store, put.
#pragma once
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/cluster.cuh"
#include "stages/conv/shape.cuh"

constexpr int MP = (M + 3) / 4 * 4;
constexpr int STAGE = BK * (PITCH_A + PITCH_B);
constexpr int TILES_M = (M + BM - 1) / BM;
constexpr bool EVEN_K = CH % BK == 0;  // a chunk lies within one filter element
constexpr bool DENSE = R == 1 && S == 1 && STRIDE == 1 && PAD == 0 && H * W % 4 == 0;
constexpr bool WIDE_STORES = PIXELS % 4 == 0;
constexpr int RS = R * S;
constexpr int CHUNKS = EVEN_K ? K_SIZE / BK : (K_SIZE + BK - 1) / BK;
constexpr int A_ROWS = THREADS / (BM / 4);
constexpr int B_ROWS = THREADS / (DENSE ? BN / 4 : BN);
constexpr int STEPS = BK / WARPS_K;
constexpr bool REDUCES = WARPS_K > 1 || SPLIT > 1;
constexpr bool WALKS = SUM_ROWS > 0 && !REDUCES;

static_assert(PITCH_A % 4 == 0 && PITCH_B % 4 == 0, "rows are copied 16 bytes at a time");
static_assert(STAGES >= 2 && BK % WARPS_K == 0, "each group of warps takes whole rows");
static_assert(A_ROWS > 0 && BK % A_ROWS == 0, "a pass of copies takes whole rows of filters");
static_assert(B_ROWS > 0 && BK % B_ROWS == 0, "a pass of copies takes whole rows of columns");
static_assert(SUM_ROWS % STEPS == 0, "sums end where chunks end");
static_assert(READS == NCHW && WRITES == NCHW, "maps lie one after another");

#if __CUDA_ARCH__ >= 900 && SPLIT > 1
#define IN_CLUSTERS __cluster_dims__(SPLIT, 1, 1)
#else
#define IN_CLUSTERS
#endif

struct Column {
    long long image;
    int pixel;
};

__device__ __forceinline__ Column column_at(long long column) {
    return {column / PIXELS, static_cast<int>(column % PIXELS)};
}

// Where tile `index` of all groups lies.
struct Tile {
    long long n0;
    int m0, group;

    __device__ __forceinline__ Tile(int index, int tiles_n) {
        const int rest = index / TILES_M;
        m0 = index % TILES_M * BM;
        n0 = static_cast<long long>(rest % tiles_n) * BN;
        group = rest / tiles_n;
    }
};

// Copies this thread's share of one chunk after another.
struct Loader {
    const float* __restrict__ nothing;
    const float* a;  // filters of this thread's first row at chunk 0
    const float* b;  // its first column at filter element (0, 0), channel 0, row 0
    int row_a, row_b, to_a, to_b, y0, x0;
    bool in_a, in_b;
    int k, r, s;  // channel of the chunk where EVEN_K, else row of W'

    __device__ __forceinline__ void start(const float* x, const float* w, Tile tile,
                                          long long columns, int chunk) {
        const int t = threadIdx.x;
        nothing = x;
        const int am = t % (BM / 4) * 4;
        row_a = t / (BM / 4);
        to_a = row_a * PITCH_A + am;
        in_a = tile.m0 + am < MP;
        a = w + static_cast<long long>(tile.group) * (K_SIZE * MP) + row_a * MP + tile.m0 + am;
        const int bn = DENSE ? t % (BN / 4) * 4 : t % BN;
        row_b = DENSE ? t / (BN / 4) : t / BN;
        to_b = row_b * PITCH_B + bn;
        in_b = tile.n0 + bn < columns;
        const Column at = column_at(in_b ? tile.n0 + bn : 0);
        y0 = at.pixel / OW * STRIDE - PAD;
        x0 = at.pixel % OW * STRIDE - PAD;
        b = x + (tile.group * (columns / PIXELS) + at.image) * (CH * H * W) + y0 * W + x0;
        if (EVEN_K) {
            k = chunk / RS * BK;
            r = chunk % RS / S;
            s = chunk % RS % S;
            b += row_b * (H * W);
        } else {
            k = chunk * BK;
        }
    }

    __device__ __forceinline__ bool inside(int dy, int dx) const {
        return in_b && (PAD == 0 || (unsigned(y0 + dy) < H && unsigned(x0 + dx) < W));
    }

    __device__ __forceinline__ void filters(float* stage) const {
        float* to = stage + to_a;
#pragma unroll
        for (int i = 0; i < BK; i += A_ROWS) {
            const bool in = in_a && (EVEN_K || k + row_a + i < K_SIZE);
            const int row = EVEN_K ? (r * S + s) * CH + k : k;
            ptx::copy16_or_zero(to + i * PITCH_A, in ? a + (row + i) * MP : nothing, in);
        }
    }

    __device__ __forceinline__ void columns(float* stage) const {
        float* to = stage + BK * PITCH_A + to_b;
        const bool in_input = EVEN_K && inside(r, s);
        const float* channel = in_input ? b + k * (H * W) + r * W + s : nothing;
#pragma unroll
        for (int i = 0; i < BK; i += B_ROWS) {
            bool in = in_input;
            const float* from = channel + i * (H * W);
            if (!EVEN_K) {
                const int row = k + row_b + i, c = row % CH, dy = row / CH / S, dx = row / CH % S;
                in = row < K_SIZE && inside(dy, dx);
                from = in ? b + c * (H * W) + dy * W + dx : nothing;
            }
            if (DENSE) ptx::copy16_or_zero(to + i * PITCH_B, from, in);
            else ptx::copy4_or_zero(to + i * PITCH_B, from, in);
        }
    }

    __device__ __forceinline__ void advance() {
        if (!EVEN_K) {
            k += BK;
        } else if (++s == S) {
            s = 0;
            if (++r == R) {
                r = 0;
                k += BK;
            }
        }
    }
};

__device__ __forceinline__ void store4(float* y, long long columns, int m, long long column,
                                       float4 v) {
    if (m >= M) return;
    if (WIDE_STORES) {
        if (column >= columns) return;
        const Column at = column_at(column);
        *reinterpret_cast<float4*>(y + (at.image * M + m) * PIXELS + at.pixel) = v;
    } else {
        const float each[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (column + j >= columns) return;
            const Column at = column_at(column + j);
            y[(at.image * M + m) * PIXELS + at.pixel] = each[j];
        }
    }
}

__device__ __forceinline__ void add(float4& sum, float4 v) {
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
}

// The sums that every group of warps put into `shared` become one across blocks and are stored.
__device__ __forceinline__ void reduce(float4* shared, float* out, Tile tile, int rank,
                                       long long columns, int index, float* parts, int* counters) {
    constexpr int QUADS = BM * BN / 4;
    if (SPLIT == 1) {
        for (int e = threadIdx.x; e < QUADS; e += THREADS) {
            float4 sum = shared[e];
#pragma unroll
            for (int g = 1; g < WARPS_K; ++g) add(sum, shared[g * QUADS + e]);
            store4(out, columns, tile.m0 + e / (BN / 4), tile.n0 + e % (BN / 4) * 4, sum);
        }
        return;
    }
#if __CUDA_ARCH__ >= 900
    if (WARPS_K > 1)
        for (int e = threadIdx.x; e < QUADS; e += THREADS) {
            float4 sum = shared[e];
#pragma unroll
            for (int g = 1; g < WARPS_K; ++g) add(sum, shared[g * QUADS + e]);
            shared[e] = sum;
        }
    ptx::cluster_sync();
    for (int e = rank * THREADS + threadIdx.x; e < QUADS; e += THREADS * SPLIT) {
        float4 sum = ptx::load_of_block(shared + e, 0);
#pragma unroll
        for (int other = 1; other < SPLIT; ++other) add(sum, ptx::load_of_block(shared + e, other));
        store4(out, columns, tile.m0 + e / (BN / 4), tile.n0 + e % (BN / 4) * 4, sum);
    }
    ptx::cluster_sync();
#else
    float4* const mine = reinterpret_cast<float4*>(parts) + static_cast<size_t>(index) * SPLIT * QUADS;
    for (int e = threadIdx.x; e < QUADS; e += THREADS) {
        float4 sum = shared[e];
#pragma unroll
        for (int g = 1; g < WARPS_K; ++g) add(sum, shared[g * QUADS + e]);
        mine[rank * QUADS + e] = sum;
    }
    __threadfence();
    __syncthreads();
    __shared__ bool last;
    if (threadIdx.x == 0) {
        last = atomicAdd(counters + index, 1) == SPLIT - 1;
        if (last) counters[index] = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int e = threadIdx.x; e < QUADS; e += THREADS) {
        float4 sum = mine[e];
        for (int other = 1; other < SPLIT; ++other) add(sum, mine[other * QUADS + e]);
        store4(out, columns, tile.m0 + e / (BN / 4), tile.n0 + e % (BN / 4) * 4, sum);
    }
#endif
}

template <class Sums>
__device__ __forceinline__ void tiled_product(const float* __restrict__ x,
                                              const float* __restrict__ w, float* __restrict__ y,
                                              float* __restrict__ parts,
                                              int* __restrict__ counters, int images, int groups) {
    extern __shared__ float4 shared[];
    float* const stages = reinterpret_cast<float*>(shared);
    const long long columns = static_cast<long long>(images) * PIXELS;
    const int tiles_n = static_cast<int>((columns + BN - 1) / BN);
    const int tiles = TILES_M * tiles_n * groups, step = gridDim.x / SPLIT;
    const int rank = blockIdx.x % SPLIT;
    const int first = CHUNKS * rank / SPLIT, chunks = CHUNKS * (rank + 1) / SPLIT - first;

    Loader loader;
    int loading = blockIdx.x / SPLIT, loaded = 0;
    loader.start(x, w, Tile(loading, tiles_n), columns, first);
    Loader prefetch = loader;
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i)
        if (i < chunks) {
            prefetch.filters(stages + i * STAGE);
            prefetch.advance();
        }
    ptx::wait_for_grid();

    const auto load_next = [&](int slot, bool filters) {
        if (loading < tiles && loaded < chunks) {
            if (filters) loader.filters(stages + slot * STAGE);
            loader.columns(stages + slot * STAGE);
            loader.advance();
            if (++loaded == chunks && WALKS) {
                loading += step;
                loaded = 0;
                if (loading < tiles) loader.start(x, w, Tile(loading, tiles_n), columns, first);
            }
        }
        ptx::copy_commit();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) load_next(i, i >= chunks);
    int slot = 0, free_slot = STAGES - 1;
    int index = blockIdx.x / SPLIT;
    do {
        Sums sums;
        sums.clear();
        for (int i = 0; i < chunks; ++i) {
            ptx::copy_wait<STAGES - 2>();
            __syncthreads();
            load_next(free_slot, true);
            sums.multiply(stages + slot * STAGE, stages + slot * STAGE + BK * PITCH_A);
            if (SUM_ROWS > 0 && (i + 1) % (SUM_ROWS / STEPS) == 0) sums.bound();
            slot = slot + 1 == STAGES ? 0 : slot + 1;
            free_slot = free_slot + 1 == STAGES ? 0 : free_slot + 1;
        }
        sums.finish();
        if (!WALKS || index + step >= tiles) ptx::start_next_grid();
        const Tile tile(index, tiles_n);
        float* const out = y + tile.group * (columns * M);
        if (REDUCES) {
            ptx::copy_wait<0>();
            __syncthreads();
            sums.put(shared);
            __syncthreads();
            reduce(shared, out, tile, rank, columns, index, parts, counters);
        } else {
            sums.store(out, columns, tile);
        }
        index += step;
    } while (WALKS && index < tiles);
}
