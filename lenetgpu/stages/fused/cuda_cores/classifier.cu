// fc1, ReLU, fc2 and argmax in fp32 on CUDA cores: a block takes IMAGES images; features and fc1's
// weights come in copies of BK features, a thread owns images x 8 hidden units in registers.
// The features are sums over 2x2 windows: the means' factor 1/4 is in fc1.
#include "gpu/ptx/async.cuh"

constexpr int WARP = 32;
constexpr int FEATURES = 1024, HIDDEN = 128, CLASSES = 10;
constexpr int WARPS = THREADS / WARP;
constexpr int OWN = IMAGES / (2 * WARPS);                // images per thread, by 8 hidden units
constexpr int COPIES = IMAGES * (BK / 4) / THREADS;      // of features, per thread and stage
constexpr int PITCH = BK + 4;
constexpr int STAGE = IMAGES * PITCH + BK * HIDDEN;      // [image][feature], [feature][hidden]
constexpr int HIDDEN_PITCH = HIDDEN + 4;
static_assert(IMAGES % (2 * WARPS) == 0 && HIDDEN == 128, "a warp: 2 lanes of images, 16 of units");
static_assert(FEATURES % BK == 0 && BK % 4 == 0 && STAGES >= 2,
              "whole copies, one ahead");
static_assert(COPIES * THREADS == IMAGES * (BK / 4) && THREADS % (BK / 4) == 0 &&
              BK * HIDDEN % (4 * THREADS) == 0, "every thread copies as much");
static_assert(SHARED_BYTES == 4 * STAGES * STAGE, "see STAGE");
static_assert((IMAGES + CLASSES) * HIDDEN_PITCH + IMAGES * CLASSES <= STAGES * STAGE,
              "hidden units and scores reuse the stages");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    plain_classify(const float* __restrict__ features, const float* __restrict__ w1,
                   const float* __restrict__ w2, float* __restrict__ scores,
                   int* __restrict__ labels, int count) {
    extern __shared__ float4 shared[];
    float* stages = reinterpret_cast<float*>(shared);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int first = blockIdx.x * IMAGES;

    const float* x_from[COPIES];
    const int k_lane = threadIdx.x % (BK / 4) * 4, image_copy = threadIdx.x / (BK / 4);
#pragma unroll
    for (int copy = 0; copy < COPIES; ++copy) {
        const size_t n = min(first + image_copy + copy * (THREADS / (BK / 4)), count - 1);
        x_from[copy] = features + n * FEATURES + k_lane;
    }
    const float* w_from = w1 + threadIdx.x * 4;
    auto fetch = [&](int stage) {
        float* to = stages + stage * STAGE;
#pragma unroll
        for (int copy = 0; copy < COPIES; ++copy)
            ptx::copy16(to + (image_copy + copy * (THREADS / (BK / 4))) * PITCH + k_lane,
                   x_from[copy]);
#pragma unroll
        for (int copy = 0; copy < COPIES; ++copy) x_from[copy] += BK;
#pragma unroll
        for (int at = 0; at < BK * HIDDEN; at += 4 * THREADS)
            ptx::copy16(to + IMAGES * PITCH + at + threadIdx.x * 4, w_from + at);
        w_from += BK * HIDDEN;
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        fetch(stage);
        ptx::copy_commit();
    }
    const int image_lane = warp * 2 * OWN + lane % 2, unit_lane = lane / 2 * 4;
    float sum[OWN][8] = {};
    int stage = 0;
#pragma unroll 1
    for (int step = 0; step < FEATURES / BK; ++step) {
        ptx::copy_wait<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < FEATURES / BK)
            fetch(stage == 0 ? STAGES - 1 : stage - 1);
        ptx::copy_commit();
        const float* a = stages + stage * STAGE + image_lane * PITCH;
        const float* b = stages + stage * STAGE + IMAGES * PITCH + unit_lane;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll 4
        for (int k = 0; k < BK; k += 4) {
            float4 x[OWN];
#pragma unroll
            for (int m = 0; m < OWN; ++m)
                x[m] = *reinterpret_cast<const float4*>(a + 2 * m * PITCH + k);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float4 b0 = *reinterpret_cast<const float4*>(b + (k + e) * HIDDEN);
                const float4 b1 = *reinterpret_cast<const float4*>(b + (k + e) * HIDDEN + 64);
                const float y[8] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w};
#pragma unroll
                for (int m = 0; m < OWN; ++m) {
                    const float one = e == 0 ? x[m].x : e == 1 ? x[m].y : e == 2 ? x[m].z : x[m].w;
#pragma unroll
                    for (int turn = 0; turn < 8; ++turn) {
                        const int j = m % 2 ? 7 - turn : turn;
                        sum[m][j] = fmaf(one, y[j], sum[m][j]);
                    }
                }
            }
        }
    }
    ptx::copy_wait<0>();
    __syncthreads();

    float* hidden = stages;                         // [image][unit, swapped in pairs]
    float* last = hidden + IMAGES * HIDDEN_PITCH;   // [class][unit, likewise]
    float* logits = last + CLASSES * HIDDEN_PITCH;  // [image][class]
#pragma unroll
    for (int m = 0; m < OWN; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h)
            *reinterpret_cast<float4*>(hidden + (image_lane + 2 * m) * HIDDEN_PITCH + h * 64 +
                                       unit_lane) =
                make_float4(sum[m][4 * h + 1], sum[m][4 * h], sum[m][4 * h + 3],
                            sum[m][4 * h + 2]);
    for (int at = threadIdx.x; at < CLASSES * HIDDEN; at += THREADS)
        last[at / HIDDEN * HIDDEN_PITCH + (at % HIDDEN ^ 1)] = w2[at];
    __syncthreads();
    for (int at = threadIdx.x; at < IMAGES * CLASSES; at += THREADS) {
        const int image = at / CLASSES, label = at % CLASSES;
        const float4* h = reinterpret_cast<const float4*>(hidden + image * HIDDEN_PITCH);
        const float4* w = reinterpret_cast<const float4*>(last + label * HIDDEN_PITCH);
        float4 part = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
        for (int k = 0; k < HIDDEN / 4; ++k) {
            const float4 x = h[k], y = w[k];
            part.x = fmaf(fmaxf(x.x, 0.0f), y.x, part.x);
            part.y = fmaf(fmaxf(x.y, 0.0f), y.y, part.y);
            part.z = fmaf(fmaxf(x.z, 0.0f), y.z, part.z);
            part.w = fmaf(fmaxf(x.w, 0.0f), y.w, part.w);
        }
        const float logit = (part.x + part.y) + (part.z + part.w);
        logits[at] = logit;
        if (first + image < count) scores[static_cast<size_t>(first) * CLASSES + at] = logit;
    }
    __syncthreads();
    for (int image = threadIdx.x; image < IMAGES && first + image < count; image += THREADS) {
        int best = 0;
#pragma unroll
        for (int label = 1; label < CLASSES; ++label)
            if (logits[image * CLASSES + label] > logits[image * CLASSES + best]) best = label;
        labels[first + image] = best;
    }
}
