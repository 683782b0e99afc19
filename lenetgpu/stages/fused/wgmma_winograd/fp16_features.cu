// Images to pool2's features in one kernel, conv2 by Winograd F(4,5) along x on wgmma: fp16
// operands, fp32 sums. A block keeps conv2's filters at all 8 points (164 KB) in shared memory,
// and the transformed maps of 4 images. Its two warpgroups take turns: one multiplies a point after
// the other and adds the products to the outputs in registers (N = 64: 8 rows, 2 tiles, 4 images),
// while the other does conv1 of its 4 images, keeps their transformed maps in registers, and writes
// them as soon as the first has left a point behind. sm_90a, any n >= 1.
#include "stages/fused/wgmma_winograd/conv2.cuh"

constexpr int GROUPS = 2;
constexpr int BLOCKS = BATCH * SIDE / 16;       // of 16 lines: a warp has 4, a lane half of one
constexpr int COLUMN_BYTES = SIDE * CELL;       // maps: [point][channel/8][image][tile][12 rows]
constexpr int IMAGES_AT = MAPS_AT + POINTS * POINT_BYTES;
constexpr int BARRIERS_AT = IMAGES_AT + GROUPS * BATCH * IMAGE_BYTES;

static_assert(BATCH * SIDE % 16 == 0 && SIDE % 4 == 0, "a warp's lines are of one image");
static_assert(BARRIERS_AT + 8 * (FILTER_BARRIERS + 2) == SHARED_BYTES, "the launcher's layout differs");
static_assert(SHARED_BYTES <= MOST_BYTES, "a block's shared memory");

// A batch's pixels; zeros past the last image.
struct Batch : Patches<BATCH * PIXELS / 8> {
    __device__ __forceinline__ void fetch(const Pixel* images, int first, int n, int tid) {
        const int there = min(BATCH, n - first) * (PIXELS / 8);
        const Pixel* from = images + size_t(first) * PIXELS + tid * 8;
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            patch_[k] = Patch{};
            if (tid + k * WARPGROUP < there) patch_[k] = load(from + k * WARPGROUP * 8);
        }
    }
};

// Which four lines of the batch a warp has in a block, and which of them this thread.
struct Line {
    int image, y, half;

    __device__ __forceinline__ Line(int block, int warp, int lane) {
        const int four = 4 * block + warp;
        image = four / (SIDE / 4);
        y = four % (SIDE / 4) * 4 + lane / 4 % 4;
        half = lane / 16;
    }
};

// What conv2 multiplies, pairs of channels of a thread's tiles.
using Values = u32[BLOCKS][PLANES][POINTS];

// `never`: as ptx::here has it, with room at `images`.
__device__ __forceinline__ void convolve1(Values& values, u32 images, u32 filters1, int warp,
                                          int lane, bool never) {
    constexpr int POSITIONS = BLOCKS * ACROSS;
    const u64 filters = ptx::operand(filters1, 64 * CELL, 8 * CELL);
    u32 pooled[BLOCKS][PLANES][ACROSS];
    const auto begin = [=](int block) {
        const Line line(block, warp, lane);
        return Strips(images + line.image * IMAGE_BYTES + 2 * line.y * ROW_BYTES +
                          line.half * HALF_BYTES,
                      lane % 4);
    };
    const auto finish = [&](int block, int plane) {
        u32 d[POINTS];
        tile_of(d, pooled[block][plane], lane / 16);
        transform(d, values[block][plane]);
        ptx::here(values[block][plane], never, images);
    };
    float even[32], odd[32];
    Strips strips = begin(0), next_strips = strips;
    strips.load(0);
    multiply1(even, strips, 0, filters);
    strips.load(1);
#pragma unroll
    for (int at = 0; at < POSITIONS; ++at) {
        const int next = at + 1, ahead = at + 2, block = at / ACROSS, x = at % ACROSS;
        if (next < POSITIONS) {
            if (next % ACROSS == 0) strips = next_strips;
            multiply1(next % 2 ? odd : even, strips, next % ACROSS, filters);
            if (ahead < POSITIONS) {
                if (ahead % ACROSS == 0)
                    next_strips = begin(ahead / ACROSS), next_strips.load(0);
                else
                    strips.load(ahead % ACROSS);
            }
            if (block > 0 && x < PLANES) finish(block - 1, x);
            ptx::wgmma_wait<1>();
        } else {
            ptx::wgmma_wait<0>();
        }
        float(&d)[32] = at % 2 ? odd : even;
        ptx::settle(d);
        u32 pairs[PLANES];
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane)
            pooled[block][plane][x] = pairs[plane] = pool_pair(d + 8 * plane);
        ptx::here(pairs, never, images);
    }
#pragma unroll
    for (int plane = 0; plane < PLANES; ++plane) finish(BLOCKS - 1, plane);
}

// A thread's values at points FROM to TO - 1, to where conv2 reads them.
template <int FROM, int TO>
__device__ __forceinline__ void write(const Values& values, u32 maps, int warp, int lane) {
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) {
        const Line line(block, warp, lane);
        const u32 to =
            maps + (2 * line.image + line.half) * COLUMN_BYTES + line.y * CELL + lane % 4 * 4;
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane)
#pragma unroll
            for (int p = FROM; p < TO; ++p)
                ptx::store_shared(to + p * POINT_BYTES + plane * PLANE_BYTES,
                                  values[block][plane][p]);
    }
}

// Lane q of four has w[i] of row q; it gets w[q] of row i.
__device__ __forceinline__ uint4 turn(const u32 (&w)[4], int lane) {
    const bool odd = lane & 1, high = lane & 2;
    const u32 a = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1);
    const u32 b = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
    const u32 v[4] = {odd ? a : w[0], odd ? w[1] : a, odd ? b : w[2], odd ? w[3] : b};
    const u32 c = __shfl_xor_sync(~0u, high ? v[0] : v[2], 2);
    const u32 d = __shfl_xor_sync(~0u, high ? v[1] : v[3], 2);
    return {high ? c : v[0], high ? d : v[1], high ? v[2] : c, high ? v[3] : d};
}
// ReLU and mean of an image's outputs: a thread has two rows of all columns, of two channels.
__device__ __forceinline__ uint4 mean(const float (&sums)[OUTPUTS][32], int image, int lane) {
    u32 w[4];
#pragma unroll
    for (int column = 0; column < 4; ++column) {
        const int from = 4 * (2 * image + column / 2), left = column % 2 * 2;
        const float *l = sums[left] + from, *r = sums[left + 1] + from;
        w[column] = ptx::half2(pool(l[0], l[1], r[0], r[1]), pool(l[2], l[3], r[2], r[3]));
    }
    return turn(w, lane);
}

// filters1: [step][2][dx and channel][8] fp16; filters2: [point][row][channel/16][2][channel][8].
extern "C" __global__ void __launch_bounds__(GROUPS* WARPGROUP, 1)
    winograd_features(const Pixel* __restrict__ images, const unsigned char* __restrict__ filters1,
                      const unsigned char* __restrict__ filters2, uint4* __restrict__ out, int n) {
    extern __shared__ __align__(128) unsigned char memory[];
    const u32 base = ptx::shared(memory);
    const int group = __shfl_sync(~0u, int(threadIdx.x) / WARPGROUP, 0);
    const int tid = threadIdx.x % WARPGROUP, lane = threadIdx.x % 32;
    const int warp = __shfl_sync(~0u, tid / 32, 0);
    const u32 maps = base + MAPS_AT, staged = base + IMAGES_AT + group * BATCH * IMAGE_BYTES;
    const u32 loaded1 = base + BARRIERS_AT, loaded2 = loaded1 + 8;  // a barrier a point
    const u32 early_free = loaded2 + 8 * POINTS, late_free = early_free + 8;

    ptx::start_next_grid();
    if (threadIdx.x == 0) {
        for (int i = 0; i < FILTER_BARRIERS; ++i) ptx::barrier_init(loaded1 + 8 * i, 1);
        ptx::barrier_init(early_free, WARPGROUP / 32);
        ptx::barrier_init(late_free, WARPGROUP / 32);
        ptx::barrier_init_fence();
    }
    if (threadIdx.x == 0 && BATCH * int(blockIdx.x) < n)
        load_filters(base, loaded1, filters1, filters2);
    __syncthreads();
    ptx::wait_for_grid();

    const int stride = GROUPS * BATCH * int(gridDim.x);
    int first = BATCH * (group * int(gridDim.x) + int(blockIdx.x));
    Batch pixels;
    pixels.fetch(images, first, n, tid);
    // Batches of the block in turns: this group's are 0, 2, ... or 1, 3, ...
    for (u32 batch = group; first < n; batch += GROUPS, first += stride) {
        const bool newly = batch < GROUPS;
        pixels.stage(staged, tid);
        ptx::sync(1 + group, WARPGROUP);
        if (newly) ptx::barrier_wait(loaded1, 0);
        Values values;
        convolve1(values, staged, base + FILTER1_AT, warp, lane, n < 0);
        if (batch > 0) ptx::barrier_wait(early_free, (batch - 1) & 1);
        write<0, EARLY>(values, maps, warp, lane);
        ptx::async_fence();
        ptx::sync(1 + group, WARPGROUP);

        u64 a = ptx::operand(base, 64 * CELL, 8 * CELL);
        u64 b = ptx::operand(maps, PLANE_BYTES, COLUMN_BYTES);
        ptx::here(a);
        ptx::here(b);
        const auto await_filters = [&](int p) {
            if (newly) ptx::barrier_wait(loaded2 + 8 * p, 0);
        };
        float even[32], odd[32], sums[OUTPUTS][32];
        await_filters(0);
        multiply2<0, CELL>(even, a, b);
        await_filters(1);
        multiply2<1, CELL>(odd, a, b);
        if (batch > 0) ptx::barrier_wait(late_free, (batch - 1) & 1);
        write<EARLY, POINTS>(values, maps, warp, lane);
        ptx::async_fence();
        ptx::sync(1 + group, WARPGROUP);

        const auto pin = [&] {
            for (int i = 0; i < OUTPUTS; ++i) ptx::here(sums[i], n < 0, base + i * 128);
        };
        const auto two_points = [&](auto next) {
            constexpr int NEXT = decltype(next)::value;
            ptx::wgmma_wait<1>();
            ptx::settle(even);
            add_point<NEXT - 2>(sums, even);
            if (NEXT > 2) pin();
            await_filters(NEXT);
            multiply2<NEXT, CELL>(even, a, b);
            ptx::wgmma_wait<1>();
            ptx::settle(odd);
            add_point<NEXT - 1>(sums, odd);
            if (NEXT > 2) pin();
            if (NEXT == EARLY && lane == 0) ptx::barrier_arrive(early_free);
            await_filters(NEXT + 1);
            multiply2<NEXT + 1, CELL>(odd, a, b);
        };
        two_points(Constant<2>{});
        two_points(Constant<4>{});
        two_points(Constant<6>{});
        pixels.fetch(images, first + stride, n, tid);
        ptx::wgmma_wait<1>();
        ptx::settle(even);
        add_point<6>(sums, even);
        pin();
        ptx::wgmma_wait<0>();
        if (lane == 0) ptx::barrier_arrive(late_free);
        pin();
        ptx::settle(odd);
        add_point<7>(sums, odd);
        const size_t cell = feature_cell(first, tid);  // images side by side: rows of 8 cells
#pragma unroll
        for (int i = 0; i < BATCH; ++i) out[(cell ^ i) + 8 * i] = mean(sums, i, lane);
    }
    const int groups = GROUPS * int(gridDim.x), own = group * int(gridDim.x) + int(blockIdx.x);
    clear_rest(out, (n + BATCH - 1) / BATCH * BATCH + own, groups, n, tid);
}
