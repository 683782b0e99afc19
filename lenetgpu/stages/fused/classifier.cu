// Features to labels in one kernel: fc1 (1024 -> 128) on wgmma, ReLU, fc2 (128 -> 10), argmax.
// A block takes TILE images; each of its two warpgroups computes 64 of fc1's outputs, transposed:
// D[output][image]. Filters arrive by bulk copies, features by 16-byte ones, STAGES slices of
// SLICE features ahead. fc1's outputs return to shared memory as fp16; mma.sync does fc2 from there.
// sm_90a, any n >= 1; fp32 sums; scores may be null.
#include "ptx.cuh"

using ptx::u32;
using ptx::u64;

constexpr int THREADS = 256, FEATURES = 1024, HIDDEN = 128, CLASSES = 10;
constexpr int SLICES = FEATURES / SLICE;
constexpr int CELL = 16;                                  // bytes: 8 fp16
constexpr int STEP_BYTES = HIDDEN * 16 * 2;
constexpr int FILTER_BYTES = HIDDEN * SLICE * 2;          // [step][half][2][64][8]
constexpr int PLANE_BYTES = TILE * CELL + CELL;           // 8 features of TILE images, padded
constexpr int SLOT_BYTES = FILTER_BYTES + SLICE / 8 * PLANE_BYTES;
constexpr int HIDDEN_BYTES = (HIDDEN + 8) * 2;            // an image's row, padded

static_assert(TILE == 80 || TILE == 128, "wgmma's N, and 16 images a warp in fc2");
static_assert(STAGES > 2 && STAGES <= SLICES, "a slot is refilled two slices after its use");
static_assert(STAGES * (SLOT_BYTES + 8) == SHARED_BYTES, "the launcher's layout differs");
static_assert(TILE * HIDDEN_BYTES <= STAGES * SLOT_BYTES, "fc1's outputs reuse the slots");

__device__ __forceinline__ void fetch(u32 slot, const uint4* features, int first, int n, int slice) {
    constexpr int CHUNKS = SLICE / 8;
    for (int at = threadIdx.x; at < TILE * CHUNKS; at += THREADS) {
        const int image = at / CHUNKS, chunk = at % CHUNKS;
        const size_t row = min(first + image, n - 1);
        ptx::copy16(slot + FILTER_BYTES + chunk * PLANE_BYTES + image * CELL,
                    features + row * (FEATURES / 8) + slice * CHUNKS + chunk);
    }
}

__device__ __forceinline__ void fetch_filters(u32 slot, const unsigned char* fc1, int slice,
                                              u32 bar) {
    ptx::barrier_expect(bar, FILTER_BYTES);
    ptx::bulk_load(slot, fc1 + slice * FILTER_BYTES, FILTER_BYTES, bar);
}

struct Best {
    float score;
    int label;
};
__device__ __forceinline__ void improve(Best& best, float score, int label) {
    if (score > best.score || (score == best.score && label < best.label)) best = {score, label};
}

// fc1: [K step][half][2][64][8] fp16; fc2: [8][2][lane] words of mma's B.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    classifier(const uint4* __restrict__ features, const unsigned char* __restrict__ fc1,
               const uint2* __restrict__ fc2, int* __restrict__ labels,
               float* __restrict__ scores, int n) {
    extern __shared__ __align__(128) unsigned char memory[];
    const u32 base = ptx::shared(memory), bars = base + STAGES * SLOT_BYTES;
    const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0), lane = threadIdx.x % 32;
    const int half = warp / 4;
    const int first = int(blockIdx.x) * TILE;

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) ptx::barrier_init(bars + 8 * s, 1);
        ptx::barrier_init_fence();
        for (int s = 0; s < STAGES; ++s)
            fetch_filters(base + s * SLOT_BYTES, fc1, s, bars + 8 * s);
    }
#pragma unroll
    for (int s = 0; s < STAGES; ++s) {
        fetch(base + s * SLOT_BYTES, features, first, n, s);
        ptx::copy_commit();
    }

    uint2 weight[HIDDEN / 16][2];
#pragma unroll
    for (int k = 0; k < HIDDEN / 16; ++k) {
        weight[k][0] = __ldg(fc2 + 2 * k * 32 + lane);
        weight[k][1] = __ldg(fc2 + (2 * k + 1) * 32 + lane);
    }

    float d[TILE / 2];
#pragma unroll
    for (int s = 0; s < SLICES; ++s) {
        const u32 slot = base + s % STAGES * SLOT_BYTES;
        ptx::copy_wait<STAGES - 3>();
        ptx::async_fence();
        __syncthreads();
        if (s >= 2 && s - 2 + STAGES < SLICES) {
            const u32 refill = base + (s - 2) % STAGES * SLOT_BYTES;
            if (threadIdx.x == 0)
                fetch_filters(refill, fc1, s - 2 + STAGES, bars + 8 * ((s - 2) % STAGES));
            fetch(refill, features, first, n, s - 2 + STAGES);
        }
        if (s >= 2) ptx::copy_commit();
        ptx::barrier_wait(bars + 8 * (s % STAGES), s / STAGES & 1);
        const u64 a = ptx::operand(slot + half * STEP_BYTES / 2, 64 * CELL, 8 * CELL);
        const u64 b = ptx::operand(slot + FILTER_BYTES, PLANE_BYTES, 8 * CELL);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < SLICE / 16; ++k) {
            if (s == 0 && k == 0)
                ptx::wgmma<false>(d, a, b);
            else
                ptx::wgmma<true>(d, a + k * (STEP_BYTES / 16), b + k * 2 * (PLANE_BYTES / 16));
        }
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
    }
    ptx::wgmma_wait<0>();
    ptx::settle(d);
    __syncthreads();

    const u32 to = base + (lane / 16 * 8 + lane % 8) * HIDDEN_BYTES +
                   (half * 64 + warp % 4 * 16 + lane / 8 % 2 * 8) * 2;
#pragma unroll
    for (int j = 0; j < TILE / 16; ++j) {
        u32 h[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            h[i] = ptx::half2(fmaxf(d[8 * j + 2 * i], 0.0f), fmaxf(d[8 * j + 2 * i + 1], 0.0f));
        ptx::store_transposed(to + 16 * j * HIDDEN_BYTES, h[0], h[1], h[2], h[3]);
    }
    __syncthreads();
    if (warp >= TILE / 16) return;

    float score[2][4] = {};
    const u32 from = base + (warp * 16 + lane % 16) * HIDDEN_BYTES + lane / 16 * CELL;
#pragma unroll
    for (int k = 0; k < HIDDEN / 16; ++k) {
        const uint4 h = ptx::load_matrices(from + k * 32);
        ptx::mma_16x8x16(score[0], h, weight[k][0]);
        ptx::mma_16x8x16(score[1], h, weight[k][1]);
    }
    const int quad = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int image = first + warp * 16 + lane / 4 + 8 * r;
        Best best{score[0][2 * r], 2 * quad};
        improve(best, score[0][2 * r + 1], 2 * quad + 1);
        if (quad == 0) {
            improve(best, score[1][2 * r], 8);
            improve(best, score[1][2 * r + 1], 9);
        }
        for (int mask = 1; mask < 4; mask *= 2) {
            const float other = __shfl_xor_sync(~0u, best.score, mask);
            improve(best, other, __shfl_xor_sync(~0u, best.label, mask));
        }
        if (image >= n) continue;
        if (quad == 0) labels[image] = best.label;
        if (scores == nullptr) continue;
        float2* row = reinterpret_cast<float2*>(scores + size_t(image) * CLASSES);
        row[quad] = {score[0][2 * r], score[0][2 * r + 1]};
        if (quad == 0) row[4] = {score[1][2 * r], score[1][2 * r + 1]};
    }
}
