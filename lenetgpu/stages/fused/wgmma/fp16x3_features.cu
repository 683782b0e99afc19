// Images to pooled conv2 features at fp32 accuracy on tensor cores: operands are split into fp16
// high + low and multiplied high*high + high*low + low*high; tensor cores truncate as they accumulate, so
// sums of a few filter elements move to fp32 registers (Ootomo & Yokota, arXiv 2203.03341). A block takes
// four images at a time: one warpgroup turns pixels by conv1 into split activations
// [part][channel/8][y][image][x][8]; two warpgroups run conv2 on two images each, wgmma reading those
// activations as they lie while conv2's filter elements stream from L2 through a pipeline. uint8 pixels are
// exact in fp16 (two products); float pixels are split as well, |x| <= 4.
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/barrier.cuh"
#include "gpu/ptx/cluster.cuh"
#include "gpu/ptx/math.cuh"
#include "gpu/ptx/shared.cuh"
#include "gpu/ptx/wgmma.cuh"
#include "stages/fused/wgmma/conv1.cuh"

constexpr int GROUPS = 2;
constexpr int BATCH = IMAGES * GROUPS;
constexpr int MAPS1 = 32;
constexpr int MAPS2 = 64;
constexpr int FILTER = 5;
constexpr int FILTER_ELEMENTS = FILTER * FILTER;

constexpr int MAP_ROW_BYTES = SIDE * VEC_BYTES;
constexpr int CHANNELS_BYTES = SIDE * IMAGES * MAP_ROW_BYTES;
constexpr int PART_BYTES = MAPS1 / 8 * CHANNELS_BYTES;
constexpr int PAIR_BYTES = PARTS * PART_BYTES;
constexpr int BUFFERS = 2 * GROUPS;

// A filter element of conv2: [part][channel/8][map][8].
constexpr int ELEMENT_COLUMN_BYTES = MAPS2 * VEC_BYTES;
constexpr int ELEMENT_PART_BYTES = MAPS1 / 8 * ELEMENT_COLUMN_BYTES;
constexpr int ELEMENT_BYTES = PARTS * ELEMENT_PART_BYTES;

constexpr int ELEMENT_STEP = 2 * ELEMENT_COLUMN_BYTES / VEC_BYTES;  // 16 channels on, in descriptor units
constexpr int MAP_STEP = 2 * CHANNELS_BYTES / VEC_BYTES;

constexpr int PIPELINE = 0;
constexpr int MAPS = PIPELINE + STAGES * ELEMENT_BYTES;
constexpr int FILTERS1 = MAPS + BUFFERS * PAIR_BYTES;
constexpr int STAGED = FILTERS1 + FILTER1_BYTES;
constexpr int FILTERS1_FULL = STAGED + PIXEL_PARTS * STAGED_BYTES;
constexpr int ELEMENT_FULL = FILTERS1_FULL + 8;
constexpr int MAPS_FULL = ELEMENT_FULL + 8 * STAGES;
constexpr int MAPS_FREE = MAPS_FULL + 8 * BUFFERS;
constexpr int RELEASED = MAPS_FREE + 8 * BUFFERS;
constexpr int SHARED_USED = RELEASED + 4 * STAGES;

static_assert(SHARED_USED <= SHARED_BYTES, "the launcher asks for too little shared memory");
static_assert(0 < PROMOTE && PROMOTE < FILTER, "a filter row is summed in two parts");
static_assert(PROMOTE < STAGES && FILTER - PROMOTE < STAGES, "the pipeline holds the elements of a part");

__device__ __forceinline__ void load_element(u32 shared, const uint4* filters2, int stage, int element) {
    const u32 full = shared + ELEMENT_FULL + 8 * stage;
    ptx::barrier_expect(full, ELEMENT_BYTES);
    ptx::bulk_load(shared + PIPELINE + stage * ELEMENT_BYTES, filters2 + element * (ELEMENT_BYTES / VEC_BYTES),
                   ELEMENT_BYTES, full);
}

__device__ __forceinline__ int first_image(int pair) {
    return (blockIdx.x + (pair / GROUPS) * gridDim.x) * BATCH + (pair % GROUPS) * IMAGES;
}

__device__ __forceinline__ float pooled(float a, float b, float c, float d) {
    return (fmaxf(a, 0.0f) + fmaxf(b, 0.0f)) + (fmaxf(c, 0.0f) + fmaxf(d, 0.0f));
}

__device__ __forceinline__ void produce(u32 shared, const Pixel* images, int count, float scale,
                                        int pairs) {
    const int thread = threadIdx.x, lane = thread % 32;
    const Offsets offsets = offsets_of(shared + STAGED, __shfl_sync(~0u, thread / 32, 0), lane);
    ptx::wait_for_grid();
    Pixels pixels;
    fetch(pixels, images, first_image(0), count, thread);
    stage(shared + STAGED, pixels, thread);
    fetch(pixels, images, first_image(1), count, thread);
    ptx::barrier_wait(shared + FILTERS1_FULL, 0);
    for (int pair = 0; pair < pairs; ++pair) {
        const int buffer = pair % BUFFERS;
        ptx::sync(1, WARPGROUP);  // the pixels are there
        ptx::barrier_wait(shared + MAPS_FREE + 8 * buffer, (pair / BUFFERS & 1) ^ 1);
        const u32 vecs = shared + MAPS + buffer * PAIR_BYTES + offsets.vec + lane % 4 * 4;
        convolve1(shared + FILTERS1, offsets.pair, [&](const float (&d)[32], int at) {
#pragma unroll
            for (int plane = 0; plane < 4; ++plane) {
                const float* s = d + 8 * plane;
                const float a = scale * pooled(s[0], s[2], s[4], s[6]);
                const float b = scale * pooled(s[1], s[3], s[5], s[7]);
                const u32 high = ptx::half2(a, b),
                          to = vecs + tile_vec(at) + plane * CHANNELS_BYTES;
                ptx::store_shared(to, high);
                ptx::store_shared(to + PART_BYTES, ptx::rest2(a, b, high));
            }
        });
        ptx::async_fence();
        ptx::barrier_arrive(shared + MAPS_FULL + 8 * buffer);
        ptx::sync(1, WARPGROUP);  // every warp has read the pixels
        stage(shared + STAGED, pixels, thread);
        fetch(pixels, images, first_image(pair + 2), count, thread);
    }
}

// The low products, which an empty accumulator takes without loss, then the high ones.
template <bool add>
__device__ __forceinline__ void multiply_low(float (&d)[MAPS2], u32 element, u32 maps) {
    const u64 high = ptx::operand(element, ELEMENT_COLUMN_BYTES, 8 * VEC_BYTES);
    const u64 low = high + ELEMENT_PART_BYTES / VEC_BYTES;
    const u64 map_high = ptx::operand(maps, CHANNELS_BYTES, MAP_ROW_BYTES);
    const u64 map_low = map_high + PART_BYTES / VEC_BYTES;
    ptx::wgmma<add>(d, low, map_high);
    ptx::wgmma<true>(d, low + ELEMENT_STEP, map_high + MAP_STEP);
    ptx::wgmma<true>(d, high, map_low);
    ptx::wgmma<true>(d, high + ELEMENT_STEP, map_low + MAP_STEP);
}

__device__ __forceinline__ void multiply_high(float (&d)[MAPS2], u32 element, u32 maps) {
    const u64 high = ptx::operand(element, ELEMENT_COLUMN_BYTES, 8 * VEC_BYTES);
    const u64 map_high = ptx::operand(maps, CHANNELS_BYTES, MAP_ROW_BYTES);
    ptx::wgmma<true>(d, high, map_high);
    ptx::wgmma<true>(d, high + ELEMENT_STEP, map_high + MAP_STEP);
}

struct Pipeline {
    int stage = 0;
    u32 parity = 0;
    int element = 0;
    int left;  // filter elements this block has yet to multiply

    __device__ __forceinline__ void advance() {
        --left;
        if (++element == FILTER_ELEMENTS) element = 0;
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// The last of the convolving warps to finish with a filter element loads the one that follows STAGES later.
template <int elements>
__device__ __forceinline__ void release_elements(u32 shared, const uint4* filters2, const Pipeline& first) {
    const int i = threadIdx.x % 32;
    if (i >= elements) return;
    const int stage = (first.stage + i) % STAGES;
    const u32 before = ptx::increment_shared(shared + RELEASED + 4 * stage);
    if ((before + 1) % (GROUPS * WARPGROUP / 32) == 0 && first.left - i > STAGES) {
        load_element(shared, filters2, stage, (first.element + i + STAGES) % FILTER_ELEMENTS);
    }
}

// Neighbouring elements of a filter row summed on the tensor cores, then in fp32 registers. Groups take
// turns, so that one multiplies while the other adds: the next starts when the low products are
// done.
template <int elements>
__device__ __forceinline__ void add_elements(float (&sum)[MAPS2], u32 shared, const uint4* filters2,
                                         Pipeline& pipe, u32 window, int group) {
    const Pipeline first = pipe;
    float d[MAPS2];
    u32 element[elements];
    ptx::sync(2 + group, GROUPS * WARPGROUP);
#pragma unroll
    for (int i = 0; i < elements; ++i) {
        element[i] = shared + PIPELINE + pipe.stage * ELEMENT_BYTES;
        ptx::barrier_wait(shared + ELEMENT_FULL + 8 * pipe.stage, pipe.parity);
        ptx::wgmma_fence();
        if (i == 0)
            multiply_low<false>(d, element[i], window);
        else
            multiply_low<true>(d, element[i], window + i * VEC_BYTES);
        pipe.advance();
    }
    ptx::wgmma_commit();
#pragma unroll
    for (int i = 0; i < elements; ++i) multiply_high(d, element[i], window + i * VEC_BYTES);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (group == 0 || pipe.left > 0) ptx::arrive(3 - group, GROUPS * WARPGROUP);
    ptx::wgmma_wait<0>();
    ptx::settle(d);
#pragma unroll
    for (int i = 0; i < MAPS2; ++i) sum[i] += d[i];
    release_elements<elements>(shared, filters2, first);
}

// Position groups are [row][image]; a vector of features is [pooled row][map, map + 8] of one thread.
__device__ __forceinline__ void store_features(const float (&sum)[MAPS2], uint4* features,
                                               int first, int count, float scale) {
    const int thread = threadIdx.x % WARPGROUP;
#pragma unroll
    for (int image = 0; image < IMAGES; ++image) {
        u32 high[4], low[4];
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            const int top = 4 * (2 * row * IMAGES + image), bottom = top + 4 * IMAGES;
            const float a = scale * pooled(sum[top], sum[top + 1], sum[bottom], sum[bottom + 1]);
            const float b =
                scale * pooled(sum[top + 2], sum[top + 3], sum[bottom + 2], sum[bottom + 3]);
            high[row] = ptx::half2(a, b);
            low[row] = ptx::rest2(a, b, high[row]);
        }
        if (first + image < count) {
            features[feature_vec(first + image, thread, 0)] =
                make_uint4(high[0], high[1], high[2], high[3]);
            features[feature_vec(first + image, thread, 1)] =
                make_uint4(low[0], low[1], low[2], low[3]);
        }
    }
}

__device__ __forceinline__ void convolve(u32 shared, const uint4* filters2, uint4* features,
                                         int count, float scale, int group, int pairs) {
    Pipeline pipe;
    pipe.left = pairs / GROUPS * FILTER_ELEMENTS;
    if (group == 1) ptx::arrive(2, GROUPS * WARPGROUP);
    for (int pair = group; pair < pairs; pair += GROUPS) {
        const int buffer = pair % BUFFERS;
        const u32 maps = shared + MAPS + buffer * PAIR_BYTES;
        float sum[MAPS2];
#pragma unroll
        for (int i = 0; i < MAPS2; ++i) sum[i] = 0.0f;
        ptx::barrier_wait(shared + MAPS_FULL + 8 * buffer, pair / BUFFERS & 1);
#pragma unroll 1
        for (int row = 0; row < FILTER; ++row) {
            const u32 window = maps + row * IMAGES * MAP_ROW_BYTES;
            add_elements<PROMOTE>(sum, shared, filters2, pipe, window, group);
            add_elements<FILTER - PROMOTE>(sum, shared, filters2, pipe, window + PROMOTE * VEC_BYTES, group);
        }
        ptx::barrier_arrive(shared + MAPS_FREE + 8 * buffer);
        store_features(sum, features, first_image(pair), count, scale);
    }
    clear_rest(features, count + int(blockIdx.x) * GROUPS + group, int(gridDim.x) * GROUPS, count,
               threadIdx.x % WARPGROUP);
}

extern "C" __global__ void __launch_bounds__((1 + GROUPS) * WARPGROUP, 1)
    split_features(const Pixel* __restrict__ images, const uint4* __restrict__ filters1,
                   const uint4* __restrict__ filters2, uint4* __restrict__ features, int count,
                   float scale1, float scale2) {
    extern __shared__ __align__(128) char memory[];
    const u32 shared = ptx::shared(memory);
    const int batches = (count + BATCH - 1) / BATCH;
    const int pairs = GROUPS * ((batches - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x));
    ptx::start_next_grid();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            ptx::barrier_init(shared + ELEMENT_FULL + 8 * i, 1);
            *reinterpret_cast<u32*>(memory + RELEASED + 4 * i) = 0;
        }
        ptx::barrier_init(shared + FILTERS1_FULL, 1);
        for (int i = 0; i < BUFFERS; ++i) {
            ptx::barrier_init(shared + MAPS_FULL + 8 * i, WARPGROUP);
            ptx::barrier_init(shared + MAPS_FREE + 8 * i, WARPGROUP);
        }
        ptx::barrier_init_fence();
        ptx::barrier_expect(shared + FILTERS1_FULL, FILTER1_BYTES);
        ptx::bulk_load(shared + FILTERS1, filters1, FILTER1_BYTES, shared + FILTERS1_FULL);
    }
    __syncthreads();
    const int group = threadIdx.x / WARPGROUP;
    if (group == 0) {
        produce(shared, images, count, scale1, pairs);
    } else {
        if (threadIdx.x == WARPGROUP) {
            for (int i = 0; i < STAGES; ++i) load_element(shared, filters2, i, i % FILTER_ELEMENTS);
        }
        convolve(shared, filters2, features, count, scale2, group - 1, pairs);
    }
}
