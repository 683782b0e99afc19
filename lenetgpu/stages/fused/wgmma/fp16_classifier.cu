// Features to labels in one kernel: fc1 (1024 -> 128) on wgmma, ReLU, fc2 (128 -> 10), argmax.
// A cluster of two blocks takes two tiles of TILE images. Each block keeps the filters of 64 of
// fc1's outputs in shared memory, loaded while the kernel before is ending, and streams half of the
// features to both; each of its two warpgroups computes D[output][image] of a tile. fc1's outputs
// turn into mma.sync's B in registers; each warp's share of the scores goes to its tile's block.
// sm_90a, any n >= 1; fp32 sums; scores may be null.
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/barrier.cuh"
#include "gpu/ptx/cluster.cuh"
#include "gpu/ptx/math.cuh"
#include "gpu/ptx/mma.cuh"
#include "gpu/ptx/shared.cuh"
#include "gpu/ptx/wgmma.cuh"

using ptx::u32;
using ptx::u64;

constexpr int BLOCKS = 2, WARPGROUP = 128, WARPS = 4;  // of a cluster, of a warpgroup
constexpr int FEATURES = 1024, HIDDEN = 128, CLASSES = 10;
constexpr int OUTPUTS = HIDDEN / BLOCKS;
constexpr int SLICE = 64, SLICES = FEATURES / SLICE;
constexpr int CORE_BYTES = 128;                        // 8 rows of 8 fp16
constexpr int STEP_BYTES = OUTPUTS * 16 * 2;           // fc1: [2][64][8]
constexpr int FILTER_BYTES = SLICE / 16 * STEP_BYTES;  // of a slice
constexpr int TILE_BYTES = TILE * SLICE * 2;           // of a slice: [TILE][SLICE], swizzled
constexpr int STAGE_BYTES = BLOCKS * TILE_BYTES;
constexpr int PITCH = TILE + 8;                   // of a class's scores
constexpr int SHARE_BYTES = CLASSES * PITCH * 4;  // of one warp
constexpr int STAGES_AT = SLICES * FILTER_BYTES, SHARES_AT = STAGES_AT + STAGES * STAGE_BYTES;
constexpr int BARRIERS_AT = SHARES_AT + WARPS * SHARE_BYTES;

static_assert(TILE == 80, "wgmma's N");
static_assert(SLICE * 2 == 128 && STAGES_AT % 1024 == 0 && TILE_BYTES % 1024 == 0, "swizzled tiles");
static_assert(WARPS * SHARE_BYTES <= STAGES * STAGE_BYTES, "this block's shares lie over the pipeline");
static_assert(BARRIERS_AT + 8 * (SLICES + 2 * STAGES + 1) == SHARED_BYTES,
              "the launcher's layout differs");
static_assert(SHARED_BYTES <= 232448, "a block's shared memory on sm_90");

// This block's tile of every slice, to both blocks.
__device__ __forceinline__ void copy_slices(u32 stages, u32 full, u32 empty,
                                            const unsigned char* features, int tiles, int rank) {
#pragma unroll 1
    for (int s = 0; s < SLICES; ++s) {
        const int stage = s % STAGES;
        if (s >= STAGES) ptx::barrier_wait(empty + 8 * stage, (s / STAGES - 1) & 1);
        ptx::barrier_expect(full + 8 * stage, tiles * TILE_BYTES);
        if (rank < tiles)
            ptx::bulk_load(stages + stage * STAGE_BYTES + rank * TILE_BYTES, features + s * TILE_BYTES,
                           TILE_BYTES, full + 8 * stage, 3);
    }
}

template <bool FIRST>
__device__ __forceinline__ void multiply(float (&d)[TILE / 2], u32 filters, u32 tile) {
    const u64 a = ptx::operand(filters, OUTPUTS * 16, CORE_BYTES);
    const u64 b = ptx::swizzled(tile);
    ptx::wgmma_fence();
    ptx::wgmma<!FIRST>(d, a, b);
#pragma unroll
    for (int k = 1; k < SLICE / 16; ++k) ptx::wgmma<true>(d, a + k * (STEP_BYTES / 16), b + 2 * k);
    ptx::wgmma_commit();
}

// A warp's share of a tile's scores, from its 16 of fc1's outputs: [class][image].
__device__ __forceinline__ void score(u32 share, u32 bar, const float (&d)[TILE / 2], uint4 weights,
                                      int lane) {
    const int group = lane / 4, quad = lane % 4;
#pragma unroll
    for (int j = 0; j < TILE / 8; ++j) {
        const float* h = d + 4 * j;
        float s[4];
        ptx::mma_start(s, weights,
                       {ptx::transpose(ptx::half2_relu(h[0], h[1])),
                        ptx::transpose(ptx::half2_relu(h[2], h[3]))});
        const u32 to = share + (group * PITCH + 8 * j + 2 * quad) * 4;
        ptx::store_cluster(to, {s[0], s[1]}, bar);
        if (group < CLASSES - 8) ptx::store_cluster(to + 8 * PITCH * 4, {s[2], s[3]}, bar);
    }
}

// features: [n / TILE][SLICES][TILE][SLICE], swizzled; fc1: [half of the outputs]
// [K step][2][64][8]; fc2: [16 outputs][lane] words of mma's A; all fp16.
extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1)
    __launch_bounds__(BLOCKS* WARPGROUP + 32, 1)
        classifier(const unsigned char* __restrict__ features,
                   const unsigned char* __restrict__ fc1, const uint4* __restrict__ fc2,
                   int* __restrict__ labels, float* __restrict__ scores, int n) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 base = ptx::shared(memory), stages = base + STAGES_AT;
    const u32 loaded = base + BARRIERS_AT, full = loaded + 8 * SLICES, empty = full + 8 * STAGES;
    const u32 scored = empty + 8 * STAGES;
    const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
    const int rank = int(ptx::cluster_rank()), own_tile = int(blockIdx.x);
    const int tiles = min(BLOCKS, (n + TILE - 1) / TILE - (own_tile - rank));

    ptx::start_next_grid();
    if (threadIdx.x == 0) {
        for (int s = 0; s < SLICES; ++s) ptx::barrier_init(loaded + 8 * s, 1);
        for (int s = 0; s < STAGES; ++s) {
            ptx::barrier_init(full + 8 * s, 1);
            ptx::barrier_init(empty + 8 * s, BLOCKS * BLOCKS * WARPS);
        }
        ptx::barrier_init(scored, 1);
        ptx::barrier_init_fence();
        ptx::barrier_expect(scored, BLOCKS * WARPS * CLASSES * TILE * 4);
        for (int s = 0; s < SLICES; ++s) {
            ptx::barrier_expect(loaded + 8 * s, FILTER_BYTES);
            ptx::bulk_load(base + s * FILTER_BYTES, fc1 + (rank * SLICES + s) * FILTER_BYTES,
                           FILTER_BYTES, loaded + 8 * s);
        }
    }
    ptx::cluster_start();

    if (warp == BLOCKS * WARPS) {
        if (lane == 0) {
            ptx::wait_for_grid();
            copy_slices(stages, full, empty, features + size_t(own_tile) * SLICES * TILE_BYTES, tiles,
                        rank);
        }
        __syncwarp();
    } else {
        const int tile = warp / WARPS, band = warp % WARPS;
        const uint4 weights = __ldg(fc2 + (rank * WARPS + band) * 32 + lane);
        float d[TILE / 2];
        ptx::barrier_wait(loaded, 0);
        ptx::barrier_wait(full, 0);
        multiply<true>(d, base, stages + tile * TILE_BYTES);
#pragma unroll 1
        for (int s = 1; s < SLICES; ++s) {
            const int stage = s % STAGES;
            ptx::barrier_wait(loaded + 8 * s, 0);
            ptx::barrier_wait(full + 8 * stage, s / STAGES & 1);
            multiply<false>(d, base + s * FILTER_BYTES,
                            stages + stage * STAGE_BYTES + tile * TILE_BYTES);
            ptx::wgmma_wait<1>();
            if (lane < BLOCKS && s - 1 + STAGES < SLICES)
                ptx::barrier_arrive_cluster(ptx::in_block(empty + 8 * ((s - 1) % STAGES), lane));
        }
        ptx::wgmma_wait<0>();
        ptx::settle(d);
        ptx::sync(1, BLOCKS * WARPGROUP);
        const u32 shares = tile == rank ? stages : base + SHARES_AT;
        score(ptx::in_block(shares + band * SHARE_BYTES, tile), ptx::in_block(scored, tile), d,
              weights, lane);
    }

    const int row = threadIdx.x, image = own_tile * TILE + row;
    ptx::barrier_wait_cluster(scored, 0);
    if (row >= TILE || image >= n) return;
    float sum[CLASSES] = {};
    for (int half = 0; half < BLOCKS; ++half) {
        const float* shares =
            reinterpret_cast<const float*>(memory + (half == rank ? STAGES_AT : SHARES_AT)) + row;
#pragma unroll
        for (int c = 0; c < CLASSES; ++c)
#pragma unroll
            for (int band = 0; band < WARPS; ++band) sum[c] += shares[(band * CLASSES + c) * PITCH];
    }
    int best = 0;
    float most = sum[0];
#pragma unroll
    for (int c = 1; c < CLASSES; ++c)
        if (sum[c] > most) most = sum[c], best = c;
    labels[image] = best;
    if (scores == nullptr) return;
    float2* to = reinterpret_cast<float2*>(scores + size_t(image) * CLASSES);
#pragma unroll
    for (int c = 0; c < CLASSES; c += 2) to[c / 2] = {sum[c], sum[c + 1]};
}
