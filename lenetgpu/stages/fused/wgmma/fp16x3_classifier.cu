// Split features to labels at fp32 accuracy: fc1 on tensor cores as high*high + high*low + low*high, sums of
// a chunk of K moved to fp32 registers; ReLU, fc2 and argmax in fp32.
// A block takes CLASSIFIER_IMAGES images; each of two warpgroups computes 64 of fc1's 128 outputs.
// Weights and features arrive chunk by chunk through a pipeline of bulk copies, both as wgmma reads
// them: features [image block][chunk][part][image][64 k] with swizzled rows, weights
// [chunk][part][k/8][output][8 k]. Any number of images.
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/barrier.cuh"
#include "gpu/ptx/cluster.cuh"
#include "gpu/ptx/shared.cuh"
#include "gpu/ptx/wgmma.cuh"

using ptx::u32;
using ptx::u64;

constexpr int IMAGES = CLASSIFIER_IMAGES;
constexpr int VECS = CLASSIFIER_VECS;
constexpr int VEC_BYTES = 16;  // eight fp16
constexpr int PARTS = 2;  // high, low
constexpr int FEATURES = 1024;
constexpr int HIDDEN = 128;
constexpr int CLASSES = 10;
constexpr int GROUPS = 2;
constexpr int WARPGROUP = 128;
constexpr int CHUNKS = FEATURES / 8 / VECS;

constexpr int WEIGHT_COLUMN_BYTES = HIDDEN * VEC_BYTES;
constexpr int WEIGHT_PART_BYTES = VECS * WEIGHT_COLUMN_BYTES;
constexpr int WEIGHT_BYTES = PARTS * WEIGHT_PART_BYTES;
constexpr int FEATURE_PART_BYTES = IMAGES * VECS * VEC_BYTES;  // [image][64 k], swizzled
constexpr int FEATURE_BYTES = PARTS * FEATURE_PART_BYTES;
constexpr int STAGE_BYTES = WEIGHT_BYTES + FEATURE_BYTES;

// fc2's weights, rows padded to whole vectors; the hidden layer and scores lie over the pipeline.
constexpr int CLASS_VECTORS = (CLASSES + 3) / 4;
constexpr int HIDDEN_PITCH = IMAGES + 8;
constexpr int SCORES_PITCH = 4 * CLASS_VECTORS + 1;
constexpr int SCORES = HIDDEN * HIDDEN_PITCH * 4;
constexpr int OUTPUT_WEIGHTS = STAGES * STAGE_BYTES;
constexpr int FULL = OUTPUT_WEIGHTS + HIDDEN * CLASS_VECTORS * 16;
constexpr int RELEASED = FULL + 8 * STAGES;
constexpr int SHARED_USED = RELEASED + 4 * STAGES;

static_assert(IMAGES == 80, "multiply_64x80 takes 80 images");
static_assert(VECS == 8 && STAGE_BYTES % 1024 == 0 && WEIGHT_BYTES % 1024 == 0, "swizzled rows");
static_assert(CHUNKS % 2 == 0, "chunks alternate between two accumulators");
static_assert(STAGES <= CHUNKS, "the pipeline is filled once before the first release");
static_assert(SCORES + IMAGES * SCORES_PITCH * 4 <= OUTPUT_WEIGHTS, "scores lie over the pipeline");
static_assert(IMAGES * CLASS_VECTORS <= GROUPS * WARPGROUP,
              "one thread for four classes of an image");
static_assert(SHARED_USED <= SHARED_BYTES, "the launcher asks for too little shared memory");

__device__ __forceinline__ void load_weights(u32 shared, const uint4* weights, int chunk) {
    const u32 to = shared + chunk % STAGES * STAGE_BYTES,
              full = shared + FULL + 8 * (chunk % STAGES);
    ptx::barrier_expect(full, STAGE_BYTES);
    ptx::bulk_load(to, weights + chunk * (WEIGHT_BYTES / VEC_BYTES), WEIGHT_BYTES, full);
}

__device__ __forceinline__ void load_features(u32 shared, const uint4* features, int chunk) {
    const u32 to = shared + chunk % STAGES * STAGE_BYTES,
              full = shared + FULL + 8 * (chunk % STAGES);
    const size_t from = (size_t(blockIdx.x) * CHUNKS + chunk) * (FEATURE_BYTES / VEC_BYTES);
    ptx::bulk_load(to + WEIGHT_BYTES, features + from, FEATURE_BYTES, full);
}

__device__ __forceinline__ void multiply_chunk(float (&d)[IMAGES / 2], u32 shared, int chunk,
                                               int group) {
    const u32 stage = shared + chunk % STAGES * STAGE_BYTES;
    ptx::barrier_wait(shared + FULL + 8 * (chunk % STAGES), chunk / STAGES & 1);
    ptx::wgmma_fence();
    const u64 high = ptx::operand(stage + group * (64 * VEC_BYTES), WEIGHT_COLUMN_BYTES, 8 * VEC_BYTES);
    const u64 low = high + WEIGHT_PART_BYTES / VEC_BYTES;
    const u64 x_high = ptx::swizzled(stage + WEIGHT_BYTES);
    const u64 x_low = x_high + FEATURE_PART_BYTES / VEC_BYTES;
    constexpr u64 a = 2 * WEIGHT_COLUMN_BYTES / VEC_BYTES, b = 2;
    ptx::wgmma<false>(d, low, x_high);
#pragma unroll
    for (int k = 1; k < VECS / 2; ++k) ptx::wgmma<true>(d, low + k * a, x_high + k * b);
#pragma unroll
    for (int k = 0; k < VECS / 2; ++k) ptx::wgmma<true>(d, high + k * a, x_low + k * b);
#pragma unroll
    for (int k = 0; k < VECS / 2; ++k) ptx::wgmma<true>(d, high + k * a, x_high + k * b);
    ptx::wgmma_commit();
}

__device__ __forceinline__ void add_chunk(float (&sum)[IMAGES / 2], float (&d)[IMAGES / 2]) {
    ptx::settle(d);
#pragma unroll
    for (int i = 0; i < IMAGES / 2; ++i) sum[i] += d[i];
}

// The last warp to finish with a chunk loads the one that follows STAGES later.
__device__ __forceinline__ void release_chunk(u32 shared, const uint4* weights,
                                              const uint4* features, int chunk) {
    if (threadIdx.x % 32 != 0) return;
    const u32 before = ptx::increment_shared(shared + RELEASED + 4 * (chunk % STAGES));
    if ((before + 1) % (GROUPS * WARPGROUP / 32) == 0 && chunk + STAGES < CHUNKS) {
        load_weights(shared, weights, chunk + STAGES);
        load_features(shared, features, chunk + STAGES);
    }
}

__device__ __forceinline__ void store_hidden(float* hidden, const float (&sum)[IMAGES / 2],
                                             float scale) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < IMAGES / 2; i += 2) {
        const int output = row + i / 2 % 2 * 8, image = i / 4 * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(hidden + output * HIDDEN_PITCH + image) =
            make_float2(scale * fmaxf(sum[i], 0.0f), scale * fmaxf(sum[i + 1], 0.0f));
    }
}

__device__ __forceinline__ float4 score_four(const float* hidden, const float4* weights, int image,
                                             int vector) {
    float4 s = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
    for (int k = 0; k < HIDDEN; ++k) {
        const float x = hidden[k * HIDDEN_PITCH + image];
        const float4 w = weights[k * CLASS_VECTORS + vector];
        s.x = fmaf(x, w.x, s.x), s.y = fmaf(x, w.y, s.y), s.z = fmaf(x, w.z, s.z),
        s.w = fmaf(x, w.w, s.w);
    }
    return s;
}

extern "C" __global__ void __launch_bounds__(GROUPS* WARPGROUP, 1)
    split_classifier(const uint4* __restrict__ features, const uint4* __restrict__ weights1,
                     const float4* __restrict__ weights2, int* __restrict__ labels,
                     float* __restrict__ scores, int count, float scale) {
    extern __shared__ __align__(1024) char memory[];
    const u32 shared = ptx::shared(memory);
    const int thread = threadIdx.x, group = thread / WARPGROUP;
    ptx::start_next_grid();
    if (thread == 0) {
        for (int i = 0; i < STAGES; ++i) {
            ptx::barrier_init(shared + FULL + 8 * i, 1);
            *reinterpret_cast<u32*>(memory + RELEASED + 4 * i) = 0;
        }
        ptx::barrier_init_fence();
        ptx::async_fence();
        for (int i = 0; i < STAGES; ++i) load_weights(shared, weights1, i);
        ptx::wait_for_grid();
        for (int i = 0; i < STAGES; ++i) load_features(shared, features, i);
    }
    float4* output_weights = reinterpret_cast<float4*>(memory + OUTPUT_WEIGHTS);
    for (int i = thread; i < HIDDEN * CLASS_VECTORS; i += GROUPS * WARPGROUP)
        output_weights[i] = weights2[i];
    __syncthreads();

    float sum[IMAGES / 2];
#pragma unroll
    for (int i = 0; i < IMAGES / 2; ++i) sum[i] = 0.0f;
    float even[IMAGES / 2], odd[IMAGES / 2];
    multiply_chunk(even, shared, 0, group);
#pragma unroll
    for (int chunk = 1; chunk + 1 < CHUNKS; chunk += 2) {
        multiply_chunk(odd, shared, chunk, group);
        ptx::wgmma_wait<1>();
        add_chunk(sum, even);
        release_chunk(shared, weights1, features, chunk - 1);
        multiply_chunk(even, shared, chunk + 1, group);
        ptx::wgmma_wait<1>();
        add_chunk(sum, odd);
        release_chunk(shared, weights1, features, chunk);
    }
    multiply_chunk(odd, shared, CHUNKS - 1, group);
    ptx::wgmma_wait<1>();
    add_chunk(sum, even);
    ptx::wgmma_wait<0>();
    add_chunk(sum, odd);
    __syncthreads();

    float* hidden = reinterpret_cast<float*>(memory);
    float* block_scores = reinterpret_cast<float*>(memory + SCORES);
    store_hidden(hidden, sum, scale);
    __syncthreads();
    if (thread < IMAGES * CLASS_VECTORS) {
        const int image = thread % IMAGES, vector = thread / IMAGES;
        const float4 s = score_four(hidden, output_weights, image, vector);
        float* to = block_scores + image * SCORES_PITCH + 4 * vector;
        to[0] = s.x, to[1] = s.y, to[2] = s.z, to[3] = s.w;
    }
    __syncthreads();
    const int first = blockIdx.x * IMAGES;
    if (thread < IMAGES && first + thread < count) {
        const float* mine = block_scores + thread * SCORES_PITCH;
        int best = 0;
        for (int i = 1; i < CLASSES; ++i) {
            if (mine[i] > mine[best]) best = i;
        }
        labels[first + thread] = best;
    }
    if (scores != nullptr) {
        for (int i = thread; i < IMAGES * CLASSES; i += GROUPS * WARPGROUP) {
            const int image = i / CLASSES;
            if (first + image < count) {
                scores[size_t(first) * CLASSES + i] =
                    block_scores[image * SCORES_PITCH + i % CLASSES];
            }
        }
    }
}
