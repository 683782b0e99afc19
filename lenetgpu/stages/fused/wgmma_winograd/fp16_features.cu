// Images to pool2's features in one warp-specialized kernel, conv2 by Winograd F(4,5) along x on
// wgmma: three producer warpgroups do conv1, a band of lines of 4 images each, keep what they
// transformed in registers, and write it as soon as the maps before have been read; the consumer
// warpgroup multiplies, a point after the other, and adds the products to the outputs in registers,
// those of a batch's end under the next one's first products. sm_90a, any n >= 1.
#include "gpu/ptx/registers.cuh"
#include "stages/fused/wgmma_winograd/specialized.cuh"

constexpr int BANDS_AT = MAPS_AT + POINTS * POINT_BYTES;
constexpr int BARRIERS_AT = BANDS_AT + BANDS * BATCH * BAND_BYTES;
constexpr int CONSUMER_REGS = 216, PRODUCER_REGS = 96;  // registers of a thread

static_assert(BARRIERS_AT + 8 * (FILTER_BARRIERS + 4) == SHARED_BYTES, "the launcher's layout differs");
static_assert(SHARED_BYTES <= MOST_BYTES, "a block's shared memory");

// A batch's pixels under a band; zeros past the last image.
struct Band : PixelVectors<BATCH * BAND_PIXELS / 8> {
    __device__ __forceinline__ void fetch(const Pixel* images, int first, int n, int band,
                                          int tid) {
        constexpr int OWN = BAND_PIXELS / 8;  // of an image
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            const int at = tid + k * WARPGROUP, image = at / OWN;
            vectors_[k] = Pixels8{};
            if (image < BATCH && first + image < n)
                vectors_[k] = load(images + size_t(first + image) * PIXELS + 2 * BAND * 28 * band +
                                 at % OWN * 8);
        }
    }
};

// What conv2 multiplies, pairs of channels of a thread's tile: half of a line, of which a warp
// takes that of all images.
using Values = u32[PLANES][POINTS];

// `never`: as ptx::here has it, with memory at `band`.
__device__ __forceinline__ void convolve1(Values& values, u32 band, u32 filters1, int warp,
                                          int lane, bool never) {
    const u64 filters = ptx::operand(filters1, 64 * VEC_BYTES, 8 * VEC_BYTES);
    u32 pooled[PLANES][ACROSS];
    Strips strips(band + lane / 4 % BATCH * BAND_BYTES + 2 * warp * ROW_BYTES +
                      lane / 16 * HALF_BYTES,
                  lane % 4);
    strips.load(0);
#pragma unroll
    for (int x = 0; x < ACROSS; ++x) {
        float d[32];
        multiply1(d, strips, x, filters);
        if (x + 1 < ACROSS) strips.load(x + 1);
        ptx::wgmma_wait<0>();
        ptx::settle(d);
        u32 pairs[PLANES];
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane)
            pooled[plane][x] = pairs[plane] = pool_pair(d + 8 * plane);
        ptx::here(pairs, never, band);
    }
#pragma unroll
    for (int plane = 0; plane < PLANES; ++plane) {
        u32 d[POINTS];
        tile_of(d, pooled[plane], lane / 16);
        transform_fp16(d, values[plane]);
        ptx::here(values[plane], never, band);
    }
}

// A thread's values at points FROM to TO - 1, to where conv2 reads them.
template <int FROM, int TO>
__device__ __forceinline__ void write(const Values& values, u32 to) {
#pragma unroll
    for (int plane = 0; plane < PLANES; ++plane)
#pragma unroll
        for (int p = FROM; p < TO; ++p)
            ptx::store_shared(to + p * POINT_BYTES + plane * PLANE_BYTES, values[plane][p]);
}

// ReLU and mean: a thread has all outputs of an image (its lane's of four), of two channels. It gets
// column lane % 4 of each image, four rows.
__device__ __forceinline__ void means(uint4 (&to)[BATCH], const float (&sums)[OUTPUTS][32], int lane) {
#pragma unroll
    for (int column = 0; column < 4; ++column) {
        const int left = column % 2 * 2;
        u32 w[4];
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            const float *l = sums[left] + 8 * row + column / 2;
            const float *r = sums[left + 1] + 8 * row + column / 2;
            w[row] = ptx::half2(pool(l[0], l[4], r[0], r[4]), pool(l[2], l[6], r[2], r[6]));
        }
        to[column] = {w[0], w[1], w[2], w[3]};
    }
    exchange(to, lane);
}

struct Barriers {  // of the points two by two: those written early, then late
    u32 loaded1, loaded2, free, full;

    __device__ __forceinline__ explicit Barriers(u32 at)
        : loaded1(at), loaded2(at + 8), free(loaded2 + 8 * POINTS), full(free + 16) {}
};

// Band `band` of this block's batches, to the maps.
__device__ __forceinline__ void produce(const Pixel* __restrict__ images, u32 base, int band,
                                        const Barriers& barriers, int n) {
    const int tid = threadIdx.x % WARPGROUP, lane = threadIdx.x % 32;
    const int warp = __shfl_sync(~0u, tid / 32, 0);
    const u32 staged = base + BANDS_AT + band * BATCH * BAND_BYTES;
    const u32 to = base + MAPS_AT + (BAND * band + warp) * LINE_BYTES +
                   (2 * (lane / 4 % BATCH) + lane / 16) * VEC_BYTES + lane % 4 * 4;
    const int stride = BATCH * int(gridDim.x);
    int first = BATCH * int(blockIdx.x);
    Band pixels;
    pixels.fetch(images, first, n, band, tid);
    for (u32 batch = 0; first < n; ++batch, first += stride) {
        pixels.stage(staged, tid);
        ptx::sync(1 + band, WARPGROUP);
        if (batch == 0) ptx::barrier_wait(barriers.loaded1, 0);
        Values values;
        convolve1(values, staged, base + FILTER1_AT, warp, lane, n < 0);
        pixels.fetch(images, first + stride, n, band, tid);
        const auto hand_over = [&](int late, auto put) {
            if (batch > 0) ptx::barrier_wait(barriers.free + 8 * late, (batch - 1) & 1);
            put();
            ptx::async_fence();
            __syncwarp();
            if (lane == 0) ptx::barrier_arrive(barriers.full + 8 * late);
        };
        hand_over(0, [&] { write<0, EARLY>(values, to); });
        hand_over(1, [&] { write<EARLY, POINTS>(values, to); });
        ptx::sync(1 + band, WARPGROUP);  // the pixels have been read
    }
}

// The maps of this block's batches times the filters, to features.
__device__ __forceinline__ void consume(uint4* __restrict__ out, u32 base,
                                        const Barriers& barriers, int n) {
    const int tid = threadIdx.x % WARPGROUP, lane = threadIdx.x % 32;
    u64 a = ptx::operand(base, 64 * VEC_BYTES, 8 * VEC_BYTES);
    u64 b = ptx::operand(base + MAPS_AT, PLANE_BYTES, LINE_BYTES);
    ptx::here(a);
    ptx::here(b);
    const int stride = BATCH * int(gridDim.x);
    int first = BATCH * int(blockIdx.x);
    if (first >= n) return;
    const auto filters = [&](u32 batch, int p) {
        if (batch == 0) ptx::barrier_wait(barriers.loaded2 + 8 * p, 0);
    };
    float even[32], odd[32], sums[OUTPUTS][32];
    const auto pin = [&] {
        for (int i = 0; i < OUTPUTS; ++i) ptx::here(sums[i], n < 0, base + i * 128);
    };
    const auto store = [&](int image) {  // images side by side: rows of 8 vectors
        const size_t vec = feature_vec(image, tid);
        uint4 features[BATCH];
        means(features, sums, lane);
        if (image < 0) return;
#pragma unroll
        for (int i = 0; i < BATCH; ++i) out[(vec ^ i) + 8 * i] = features[i];
    };
    for (int i = 0; i < 32; ++i) {
        odd[i] = 0.0f;
        for (int k = 0; k < OUTPUTS; ++k) sums[k][i] = 0.0f;
    }
    for (u32 batch = 0; first < n; ++batch, first += stride) {
        // What is left of the batch before is done under this one's first points.
        ptx::barrier_wait(barriers.full, batch & 1);
        filters(batch, 0);
        multiply2<0, LINE_BYTES>(even, a, b);
        add_point<7>(sums, odd);
        pin();
        filters(batch, 1);
        multiply2<1, LINE_BYTES>(odd, a, b);
        store(first - stride);
        const auto take = [&](auto point, float (&d)[32]) {
            constexpr int TAKEN = decltype(point)::value;
            ptx::settle(d);
            add_point<TAKEN>(sums, d);
            if (TAKEN > 1) pin();
        };
        const auto two_points = [&](auto next) {
            constexpr int NEXT = decltype(next)::value;
            ptx::wgmma_wait<1>();
            take(Constant<NEXT - 2>{}, even);
            filters(batch, NEXT);
            if (NEXT == EARLY) ptx::barrier_wait(barriers.full + 8, batch & 1);
            multiply2<NEXT, LINE_BYTES>(even, a, b);
            ptx::wgmma_wait<1>();
            if (NEXT == EARLY && lane == 0) ptx::barrier_arrive(barriers.free);
            take(Constant<NEXT - 1>{}, odd);
            filters(batch, NEXT + 1);
            multiply2<NEXT + 1, LINE_BYTES>(odd, a, b);
        };
        two_points(Constant<2>{});
        two_points(Constant<4>{});
        two_points(Constant<6>{});
        ptx::wgmma_wait<1>();
        take(Constant<6>{}, even);
        ptx::wgmma_wait<0>();
        if (lane == 0) ptx::barrier_arrive(barriers.free + 8);
        ptx::settle(odd);
    }
    add_point<7>(sums, odd);
    store(first - stride);
}

// filters1: [step][2][dx and channel][8] fp16; filters2: [point][row][channel/16][2][channel][8].
extern "C" __global__ void __launch_bounds__(GROUPS* WARPGROUP, 1)
    winograd_features(const Pixel* __restrict__ images, const unsigned char* __restrict__ filters1,
                      const unsigned char* __restrict__ filters2, uint4* __restrict__ out, int n) {
    extern __shared__ __align__(128) unsigned char memory[];
    const u32 base = ptx::shared(memory);
    const int group = __shfl_sync(~0u, int(threadIdx.x) / WARPGROUP, 0);
    const Barriers barriers(base + BARRIERS_AT);

    ptx::start_next_grid();
    if (threadIdx.x == 0) {
        for (int i = 0; i < FILTER_BARRIERS; ++i) ptx::barrier_init(barriers.loaded1 + 8 * i, 1);
        for (int i = 0; i < 2; ++i) {
            ptx::barrier_init(barriers.free + 8 * i, WARPGROUP / 32);
            ptx::barrier_init(barriers.full + 8 * i, BANDS * WARPGROUP / 32);
        }
        ptx::barrier_init_fence();
    }
    if (threadIdx.x == 0 && BATCH * int(blockIdx.x) < n)
        load_filters(base, barriers.loaded1, filters1, filters2);
    __syncthreads();
    ptx::wait_for_grid();

    if (group == BANDS) {
        ptx::more_registers<CONSUMER_REGS>();
        consume(out, base, barriers, n);
    } else {
        ptx::fewer_registers<PRODUCER_REGS>();
        produce(images, base, group, barriers, n);
        const int groups = BANDS * int(gridDim.x), own = group * int(gridDim.x) + int(blockIdx.x);
        clear_rest(out, (n + BATCH - 1) / BATCH * BATCH + own, groups, n, threadIdx.x % WARPGROUP);
    }
}
