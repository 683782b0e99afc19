// Images to pool2's features at fp32 accuracy in one kernel, conv2 by Winograd F(4,5) along x:
// operands are split into fp16 high + low and multiplied low * high + high * low + high * high, maps
// after they were transformed in fp32. Warp-specialized as fp16_features.cu: three producers do conv1,
// keep its pooled maps in fp32, and write two points of them at a time as soon as those of the batch
// before have been read; the consumer multiplies. Filters of two points are in shared memory, others
// follow as parts of them have been used: each block of a cluster of two loads half and sends it to both.
// sm_90a, any n >= 1.
#include "gpu/ptx/registers.cuh"
#include "stages/fused/wgmma_winograd/fp16x3_pipeline.cuh"

constexpr int SPLIT_BYTES = 2 * POINT_BYTES;  // of a point's maps: high, low
constexpr int STAGED_BAND_BYTES = PIXEL_PARTS * BATCH * BAND_BYTES;
constexpr int SPLIT_MAPS_AT = UNITS * FILTERS_BYTES;
constexpr int CONV1_AT = SPLIT_MAPS_AT + POINTS * SPLIT_BYTES;
constexpr int BANDS_AT = CONV1_AT + FILTER1_BYTES;
constexpr int BARRIERS_AT = BANDS_AT + BANDS * STAGED_BAND_BYTES;
constexpr int CONSUMER_REGS = 200, PRODUCER_REGS = 104;  // registers of a thread

static_assert(BARRIERS_AT + 8 * BARRIERS == SHARED_BYTES, "the launcher's layout differs");
static_assert(SHARED_BYTES <= MOST_BYTES, "a block's shared memory");
static_assert(BATCH == WARPGROUP / 32, "an image a warp");
static_assert(TILE % (BLOCKS * BATCH) == 0, "what a cluster stores lies within one tile");

// The first image of the cluster, of whose blocks this one begins at `first`.
__device__ __forceinline__ int cluster_first(int first) {
    return first - int(blockIdx.x % BLOCKS) * BATCH;
}

// An image's pixels under a band, a warp's; zeros past the last image.
class Lines {
    static constexpr int PIXEL_VECTORS = BAND_PIXELS / 8, EACH = (PIXEL_VECTORS + 31) / 32;
    Pixels8 vectors_[EACH];

public:
    __device__ __forceinline__ void fetch(const Pixel* images, int image, int n, int band,
                                          int lane) {
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            const int at = lane + 32 * k;
            vectors_[k] = Pixels8{};
            if (at < PIXEL_VECTORS && image < n)
                vectors_[k] = load(images + size_t(image) * PIXELS + 2 * BAND * 28 * band + at * 8);
        }
    }
    // Those of all images in a row, then what fp16 leaves of them where it does.
    __device__ __forceinline__ void stage(u32 to, int lane) const {
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            const int at = lane + 32 * k;
            if (at >= PIXEL_VECTORS) continue;
            const uint4 high = to_fp16(vectors_[k]);
            ptx::store_shared(to + at * VEC_BYTES, high);
#if !UINT8_PIXELS
            ptx::store_shared(to + BATCH * BAND_BYTES + at * VEC_BYTES, rest(vectors_[k], high));
#endif
        }
    }
};

// The inputs of a thread's tile, of 4 planes of its two channels.
using Inputs = float[PLANES][2][POINTS];

// Conv1's products at position x: those of what fp16 leaves of pixels, where it does, and all others
// after them, so that A's registers are the same.
__device__ __forceinline__ void multiply_split(float (&d)[32], Strips (&parts)[PIXEL_PARTS], int x,
                                               u64 filters) {
    const auto finish = [&] {
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::settle(d);
    };
    if constexpr (PIXEL_PARTS == 2) {
        parts[1].load(x);
        ptx::wgmma_fence();
        multiply_strip<false>(d, parts[1], x, filters);
        finish();
    }
    parts[0].load(x);
    ptx::wgmma_fence();
    multiply_strip<PIXEL_PARTS == 2>(d, parts[0], x, filters + FILTER1_PART_BYTES / 16);
    multiply_strip<true>(d, parts[0], x, filters);
    finish();
}

// `scale` is four times what makes the scaled map of a sum of four; `never` as ptx::here has it,
// with memory at `band`.
__device__ __forceinline__ void convolve1(Inputs& inputs, u32 band, u32 filters1, float scale,
                                          int warp, int lane, bool never) {
    const u64 filters = ptx::operand(filters1, 64 * VEC_BYTES, 8 * VEC_BYTES);
    float pooled[PLANES][2][ACROSS];
    const u32 from = band + lane / 4 % BATCH * BAND_BYTES + 2 * warp * ROW_BYTES +
                     lane / 16 * HALF_BYTES;
    Strips parts[PIXEL_PARTS] = {
        Strips(from, lane % 4),
#if !UINT8_PIXELS
        Strips(from + BATCH * BAND_BYTES, lane % 4),
#endif
    };
#pragma unroll
    for (int x = 0; x < ACROSS; ++x) {
        float d[32], found[2 * PLANES];
        multiply_split(d, parts, x, filters);
#pragma unroll
        for (int i = 0; i < 2 * PLANES; ++i) {
            const float* s = d + i / 2 * 8 + i % 2;
            pooled[i / 2][i % 2][x] = found[i] = scale * pool(s[0], s[2], s[4], s[6]);
        }
        ptx::here(found, never, band);
    }
#pragma unroll
    for (int i = 0; i < 2 * PLANES; ++i)
        tile_of(inputs[i / 2][i % 2], pooled[i / 2][i % 2], lane / 16);
}

// Two points of a thread's tile, to where conv2 reads them.
template <int PAIR>
__device__ __forceinline__ void write(const Inputs& inputs, u32 to) {
#pragma unroll
    for (int plane = 0; plane < PLANES; ++plane) {
        float a[POINTS], b[POINTS];
        transform_input(inputs[plane][0], a);
        transform_input(inputs[plane][1], b);
#pragma unroll
        for (int p = 2 * PAIR; p < 2 * PAIR + 2; ++p) {
            const float x = a[ORDER[p]], y = b[ORDER[p]];
            const u32 high = ptx::half2(x, y), at = to + p * SPLIT_BYTES + plane * PLANE_BYTES;
            ptx::store_shared(at, high);
            ptx::store_shared(at + POINT_BYTES, ptx::rest2(x, y, high));
        }
    }
}

// Band `band` of this block's batches, to the maps.
__device__ __forceinline__ void produce(const Pixel* __restrict__ images, u32 base, int band,
                                        const Barriers& barriers, float scale, int n) {
    const int lane = threadIdx.x % 32;
    const int warp = __shfl_sync(~0u, int(threadIdx.x) % WARPGROUP / 32, 0);
    const u32 staged = base + BANDS_AT + band * STAGED_BAND_BYTES;
    const int stride = BATCH * int(gridDim.x);
    int first = BATCH * int(blockIdx.x);
    Lines pixels;
    pixels.fetch(images, first + warp, n, band, lane);
    for (u32 batch = 0; cluster_first(first) < n; ++batch, first += stride) {
        pixels.stage(staged + warp * BAND_BYTES, lane);
        ptx::sync(1 + band, WARPGROUP);
        if (batch == 0) ptx::barrier_wait(barriers.loaded1, 0);
        Inputs inputs;
        convolve1(inputs, staged, base + CONV1_AT, 4 * scale, warp, lane, n < 0);
        u64 own = threadIdx.x;
        ptx::here(own);  // where its vectors lie is not kept while it convolves
        const int at = int(own) % 32;
        const u32 to = base + SPLIT_MAPS_AT + (BAND * band + warp) * LINE_BYTES +
                   (2 * (at / 4 % BATCH) + at / 16) * VEC_BYTES + at % 4 * 4;
        const auto hand_over = [&](auto pair) {
            constexpr int PAIR = decltype(pair)::value;
            if (batch > 0) ptx::barrier_wait(barriers.read + 8 * PAIR, (batch - 1) & 1);
            write<PAIR>(inputs, to);
            ptx::async_fence();
            __syncwarp();
            if (at == 0) ptx::barrier_arrive(barriers.written + 8 * PAIR);
        };
        hand_over(Constant<0>{});
        hand_over(Constant<1>{});
        hand_over(Constant<2>{});
        pixels.fetch(images, first + stride + warp, n, band, at);
        hand_over(Constant<3>{});
        ptx::sync(1 + band, WARPGROUP);  // the pixels have been read
    }
}

// ReLU and mean: a thread has all outputs of an image (its lane's of four), of two channels. It gets
// column lane % 4 of each image, four rows, as high and low.
__device__ __forceinline__ void means(uint4 (&high)[BATCH], uint4 (&low)[BATCH],
                                      const float (&sums)[OUTPUTS][32], float scale, int lane) {
#pragma unroll
    for (int column = 0; column < 4; ++column) {
        const int left = column % 2 * 2;
        u32 h[4], r[4];
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            const float *one = sums[left] + 8 * row + column / 2;
            const float *two = sums[left + 1] + 8 * row + column / 2;
            const float a = scale * pool(one[0], one[4], two[0], two[4]);
            const float b = scale * pool(one[2], one[6], two[2], two[6]);
            h[row] = ptx::half2(a, b), r[row] = ptx::rest2(a, b, h[row]);
        }
        high[column] = {h[0], h[1], h[2], h[3]}, low[column] = {r[0], r[1], r[2], r[3]};
    }
    exchange(high, lane);
    exchange(low, lane);
}

// The maps of this block's batches times the filters, to features.
__device__ __forceinline__ void consume(uint4* __restrict__ out, u32 base, const Pipeline& pipe,
                                        float scale, int n) {
    const Barriers& barriers = pipe.barriers;
    const int tid = threadIdx.x % WARPGROUP, lane = threadIdx.x % 32;
    const bool loads = __shfl_sync(~0u, tid / 32, 0) == 0;
    u64 a = ptx::operand(base, 64 * VEC_BYTES, 8 * VEC_BYTES);
    u64 b = ptx::operand(base + SPLIT_MAPS_AT, PLANE_BYTES, LINE_BYTES);
    const int stride = BATCH * int(gridDim.x);
    int first = BATCH * int(blockIdx.x);
    float d[32], sums[OUTPUTS][32];
    const auto store = [&](int image) {  // images side by side: rows of 8 vectors
        uint4 high[BATCH], low[BATCH];
        means(high, low, sums, 4 * scale, lane);
        if (image < 0) return;
        const size_t vec = feature_vec(image, tid, 0), rest = feature_vec(image, tid, 1);
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            out[(vec ^ i) + 8 * i] = high[i];
            out[(rest ^ i) + 8 * i] = low[i];
        }
    };
    for (int i = 0; i < 32; ++i)
        for (int k = 0; k < OUTPUTS; ++k) sums[k][i] = 0.0f;
    for (u32 batch = 0; cluster_first(first) < n; ++batch, first += stride) {
        const bool more = cluster_first(first + stride) < n;
        const auto point = [&](auto which) {
            constexpr int P = decltype(which)::value, HIGH = P % 2 * 2, LOW = HIGH + 1;
            const u64 high = a + HIGH * FILTERS_BYTES / 16, low = a + LOW * FILTERS_BYTES / 16;
            const u64 maps = b + P * SPLIT_BYTES / 16, rest = maps + POINT_BYTES / 16;
            if (P % 2 == 0) ptx::barrier_wait(barriers.written + 8 * (P / 2), batch & 1);
            ptx::barrier_wait(barriers.full + 8 * LOW, P / 2 & 1);
            ptx::wgmma_fence();
            multiply_part<false>(d, low, maps);
            ptx::wgmma_commit();
            ptx::barrier_wait(barriers.full + 8 * HIGH, P / 2 & 1);
            ptx::wgmma_fence();
            multiply_part<true>(d, high, rest);
            multiply_part<true>(d, high, maps);
            ptx::wgmma_commit();
            // Under the products: what follows those before, the means of the batch before.
            if (loads && (P > 0 || batch > 0) && (P < POINTS - 1 || more))
                pipe.template follow<(P + POINTS - 1) % POINTS>(0, lane);
            if (P == 0) store(first - stride);
            ptx::wgmma_wait<1>();
            pipe.release(LOW, lane);
            if (loads && (P < POINTS - 2 || more)) pipe.template follow<P>(1, lane);
            ptx::wgmma_wait<0>();
            pipe.release(HIGH, lane);
            if (P % 2 == 1 && lane == 0) ptx::barrier_arrive(barriers.read + 8 * (P / 2));
            ptx::settle(d);
            add_point<P>(sums, d);
            if (P > 1)
                for (int i = 0; i < OUTPUTS; ++i) ptx::here(sums[i], n < 0, base + i * 128);
        };
        point(Constant<0>{});
        point(Constant<1>{});
        point(Constant<2>{});
        point(Constant<3>{});
        point(Constant<4>{});
        point(Constant<5>{});
        point(Constant<6>{});
        point(Constant<7>{});
    }
    store(first - stride);
}

// filters1: [part][step][2][dx and channel][8] fp16; filters2: [point][part][row][channel/16][2]
// [channel][8]; a block of a cluster has as many batches as the other, be they of no image.
extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1)
    __launch_bounds__(GROUPS* WARPGROUP, 1)
        split_features(const Pixel* __restrict__ images, const unsigned char* __restrict__ filters1,
                       const unsigned char* __restrict__ filters2, uint4* __restrict__ out, int n,
                       float scale1, float scale2) {
    extern __shared__ __align__(128) unsigned char memory[];
    const u32 base = ptx::shared(memory), rank = ptx::cluster_rank();
    const int group = __shfl_sync(~0u, int(threadIdx.x) / WARPGROUP, 0);
    const Barriers barriers(base + BARRIERS_AT);
    const Pipeline pipe = {filters2, base, rank, barriers};

    ptx::start_next_grid();
    if (threadIdx.x == 0) barriers.begin();
    ptx::cluster_start();
    if (threadIdx.x == BANDS * WARPGROUP) {
        ptx::barrier_expect(barriers.loaded1, FILTER1_BYTES);
        ptx::bulk_load(base + CONV1_AT, filters1, FILTER1_BYTES, barriers.loaded1);
        for (int point = 0; point < 2; ++point)
            for (int part = 1; part >= 0; --part) pipe.load(point, part);
    }
    __syncwarp();
    ptx::wait_for_grid();

    if (group == BANDS) {
        ptx::more_registers<CONSUMER_REGS>();
        consume(out, base, pipe, scale2, n);
    } else {
        ptx::fewer_registers<PRODUCER_REGS>();
        produce(images, base, group, barriers, scale1, n);
        const int groups = BANDS * int(gridDim.x), own = group * int(gridDim.x) + int(blockIdx.x);
        clear_rest(out, (n + BATCH - 1) / BATCH * BATCH + own, groups, n, threadIdx.x % WARPGROUP);
    }
    ptx::cluster_sync();  // the other block's last word to this one
}
