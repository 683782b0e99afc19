// Features to labels in one kernel on mma.sync: fc1 (1024 -> 128), ReLU, fc2 (128 -> 10), argmax.
// A block takes TILE images; each of its eight warps computes 32 of fc1's outputs over every other
// K step, then two partners share them out. Slices of features and weights arrive through a pipeline.
// A warp's 16 outputs are one K step of fc2: multiplied where they lie; the scores are added in shared
// memory. PARTS 1: fp16 operands. PARTS 2: fp16 high + low, three products, each K step's sum moved to
// fp32 registers. sm_80 and later, any n >= 1; scores may be null.
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/math.cuh"
#include "gpu/ptx/mma.cuh"
#include "gpu/ptx/shared.cuh"

using ptx::u32;

constexpr int WARP = 32, WARPS = 8, THREADS = WARPS * WARP;
constexpr int FEATURES = 1024, HIDDEN = 128, CLASSES = 10;
constexpr int VEC_BYTES = 16;                              // bytes: 8 fp16
constexpr int SLICE = 64 / PARTS, SLICES = FEATURES / SLICE;  // features
constexpr int CHUNKS = SLICE / 8;
constexpr int PLANE_BYTES = TILE * VEC_BYTES + VEC_BYTES;  // 8 features of TILE images, padded
constexpr int PART_BYTES = CHUNKS * PLANE_BYTES;
constexpr int PAIR_BYTES = WARP * VEC_BYTES;               // 16 K x 16 outputs, as lanes read them
constexpr int STEP_BYTES = HIDDEN / 16 * PAIR_BYTES;
constexpr int WEIGHT_BYTES = PARTS * SLICE / 16 * STEP_BYTES;
constexpr int STAGE_BYTES = WEIGHT_BYTES + PARTS * PART_BYTES;
constexpr int ROWS = TILE / 16;                            // tiles of 16 images
constexpr int PITCH = 24;                                  // scores of an image and warp, padded

static_assert(PARTS == 1 || PARTS == 2, "fp16, or high and low");
static_assert(TILE % 16 == 0 && HIDDEN == 16 * WARPS, "mma's rows; a warp's outputs");
static_assert(SLICE % 32 == 0, "partners take turns at K steps");
static_assert(ROWS * 8 * THREADS * 4 <= SHARED_BYTES, "what partners exchange lies over the pipeline");
static_assert(STAGES >= 3, "a stage is refilled while another is read and a third is on its way");
static_assert(STAGES * STAGE_BYTES == SHARED_BYTES, "the launcher's layout differs");
static_assert(SHARED_BYTES <= 99 * 1024, "a block's shared memory on sm_86, sm_89 and sm_120");
static_assert((WARPS * TILE * PITCH + TILE * (CLASSES + 1)) * 4 <= SHARED_BYTES,
              "scores lie over the pipeline");

__device__ __forceinline__ void fetch(u32 stage, const uint4* features, const uint4* weights,
                                      int first, int n, int slice) {
#pragma unroll
    for (int at = 0; at < WEIGHT_BYTES / VEC_BYTES; at += THREADS)
        ptx::copy16(stage + (at + threadIdx.x) * VEC_BYTES,
                    weights + slice * (WEIGHT_BYTES / VEC_BYTES) + at + threadIdx.x);
#pragma unroll
    for (int begin = 0; begin < TILE * PARTS * CHUNKS; begin += THREADS) {
        const int at = begin + threadIdx.x;
        if (TILE * PARTS * CHUNKS % THREADS != 0 && at >= TILE * PARTS * CHUNKS) break;
        const int chunk = at % CHUNKS, part = at / CHUNKS % PARTS, image = at / CHUNKS / PARTS;
        const size_t row = size_t(min(first + image, n - 1)) * PARTS + part;
        ptx::copy16(stage + WEIGHT_BYTES + part * PART_BYTES + chunk * PLANE_BYTES + image * VEC_BYTES,
                    features + row * (FEATURES / 8) + slice * CHUNKS + chunk);
    }
}

using Sums = float[ROWS][4][4];                            // 32 outputs of 16 images, ROWS times

__device__ __forceinline__ void multiply16(float (&d)[4][4], uint4 a, const uint4 (&b)[2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
        ptx::mma_add(d[i], a, i % 2 ? ptx::high2(b[i / 2]) : ptx::low2(b[i / 2]));
}

// images: this lane's row of ldmatrix, weights: its columns, of a K step.
__device__ __forceinline__ void multiply(Sums& sums, u32 images, u32 weights) {
    const uint4 b[2] = {ptx::load_shared4(weights), ptx::load_shared4(weights + PAIR_BYTES)};
#if PARTS == 1
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
        multiply16(sums[r], ptx::load_matrices(images + r * (16 * VEC_BYTES)), b);
#else
    const u32 low = weights + WEIGHT_BYTES / 2;
    const uint4 b_low[2] = {ptx::load_shared4(low), ptx::load_shared4(low + PAIR_BYTES)};
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const uint4 a = ptx::load_matrices(images + r * (16 * VEC_BYTES));
        const uint4 a_low = ptx::load_matrices(images + PART_BYTES + r * (16 * VEC_BYTES));
        float d[4][4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            ptx::mma_start(d[i], a, i % 2 ? ptx::high2(b_low[i / 2]) : ptx::low2(b_low[i / 2]));
        multiply16(d, a_low, b);
        multiply16(d, a, b);
#pragma unroll
        for (int i = 0; i < 16; ++i) sums[r][i / 4][i % 4] += d[i / 4][i % 4];
    }
#endif
}

__device__ __forceinline__ float relu(float v, float scale) { return scale * fmaxf(v, 0.0f); }

// fc2 on a tile's rows: D's two columns of 8 are A's K step of 16.
__device__ __forceinline__ void score(float (&d)[2][4], const float (&hidden)[8],
                                      const uint4 (&weights)[PARTS], float scale) {
    uint4 a, a_low;
    u32* const high = &a.x;
    u32* const low = &a_low.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float x = relu(hidden[2 * i], scale), y = relu(hidden[2 * i + 1], scale);
        high[i] = ptx::half2(x, y);
        low[i] = ptx::rest2(x, y, high[i]);
    }
    const uint4 b = weights[0];
    if (PARTS == 1) {
        ptx::mma_start(d[0], a, ptx::low2(b));
        ptx::mma_start(d[1], a, ptx::high2(b));
    } else {
        const uint4 b_low = weights[PARTS - 1];
        ptx::mma_start(d[0], a, ptx::low2(b_low));
        ptx::mma_start(d[1], a, ptx::high2(b_low));
        ptx::mma_add(d[0], a_low, ptx::low2(b));
        ptx::mma_add(d[1], a_low, ptx::high2(b));
        ptx::mma_add(d[0], a, ptx::low2(b));
        ptx::mma_add(d[1], a, ptx::high2(b));
    }
}

// features: [n][part][1024]; fc1: [slice][part][K step][output/16][lane][two columns of B];
// fc2: [part][K step][lane][two columns of B], zeros past class 9; all fp16.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    mma_classifier(const uint4* __restrict__ features, const uint4* __restrict__ fc1,
                   const uint4* __restrict__ fc2, int* __restrict__ labels,
                   float* __restrict__ scores, int n, float scale1, float scale2) {
    extern __shared__ __align__(128) unsigned char memory[];
    const u32 base = ptx::shared(memory);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int columns = warp % (WARPS / 2) * 2, half = warp / (WARPS / 2);
    const int first = int(blockIdx.x) * TILE;
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        fetch(base + s * STAGE_BYTES, features, fc1, first, n, s);
        ptx::copy_commit();
    }
    uint4 weights[PARTS];
#pragma unroll
    for (int p = 0; p < PARTS; ++p)
        weights[p] = __ldg(fc2 + (p * WARPS + columns + half) * WARP + lane);

    Sums sums;
#pragma unroll
    for (int i = 0; i < ROWS * 16; ++i) sums[i / 16][i / 4 % 4][i % 4] = 0.0f;
    const u32 images =
        base + WEIGHT_BYTES + (2 * half + lane / 16) * PLANE_BYTES + lane % 16 * VEC_BYTES;
    const u32 outputs = base + half * STEP_BYTES + columns * PAIR_BYTES + lane * VEC_BYTES;
    int at = 0, free = STAGES - 1;
#pragma unroll 1
    for (int s = 0; s < SLICES; ++s) {
        ptx::copy_wait<STAGES - 2>();
        __syncthreads();
        if (s + STAGES - 1 < SLICES)
            fetch(base + free * STAGE_BYTES, features, fc1, first, n, s + STAGES - 1);
        ptx::copy_commit();
#pragma unroll
        for (int k = 0; k < SLICE / 16; k += 2)
            multiply(sums, images + at * STAGE_BYTES + k * (2 * PLANE_BYTES),
                     outputs + at * STAGE_BYTES + k * STEP_BYTES);
        free = at;
        at = at + 1 == STAGES ? 0 : at + 1;
    }
    __syncthreads();

    float* const swap = reinterpret_cast<float*>(memory);      // [sum][thread]
    float hidden[ROWS][8];
#pragma unroll
    for (int i = 0; i < ROWS * 8; ++i) {
        const float lower = sums[i / 8][i / 4 % 2][i % 4];
        const float upper = sums[i / 8][2 + i / 4 % 2][i % 4];
        swap[i * THREADS + threadIdx.x] = half ? lower : upper;
        hidden[i / 8][i % 8] = half ? upper : lower;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ROWS * 8; ++i)
        hidden[i / 8][i % 8] += swap[i * THREADS + (threadIdx.x ^ THREADS / 2)];
    __syncthreads();

    float* const partial = reinterpret_cast<float*>(memory);   // [warp][image][PITCH]
    float* const total = partial + WARPS * TILE * PITCH;       // [image][CLASSES + 1]
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        float d[2][4];
        score(d, hidden[r], weights, scale1);
        float* to = partial + (warp * TILE + 16 * r + lane / 4) * PITCH + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            *reinterpret_cast<float2*>(to + i % 2 * (8 * PITCH) + i / 2 * 8) =
                make_float2(d[i / 2][i % 2 * 2], d[i / 2][i % 2 * 2 + 1]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * CLASSES; i += THREADS) {
        const int image = i / CLASSES, label = i % CLASSES;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += partial[(w * TILE + image) * PITCH + label];
        sum *= scale2;
        total[image * (CLASSES + 1) + label] = sum;
        if (scores != nullptr && first + image < n) scores[size_t(first) * CLASSES + i] = sum;
    }
    __syncthreads();
    if (threadIdx.x < TILE && first + int(threadIdx.x) < n) {
        const float* mine = total + threadIdx.x * (CLASSES + 1);
        int best = 0;
#pragma unroll
        for (int i = 1; i < CLASSES; ++i)
            if (mine[i] > mine[best]) best = i;
        labels[first + threadIdx.x] = best;
    }
}
