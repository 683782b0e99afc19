// The body of the kernels whose GROUPS warpgroups carry two images each from pixels to features. A
// block stays on its multiprocessor with the filters in shared memory. conv2 reads conv1's pooled
// vectors where they lie, no im2col; the warpgroups take turns at it, so that one feeds the tensor
// cores while the others do conv1, pool and store. A vector is 16 bytes, so a filter element is one
// K step of bytes or two of fp16.
#pragma once
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/barrier.cuh"
#include "gpu/ptx/cluster.cuh"
#include "gpu/ptx/math.cuh"
#include "gpu/ptx/shared.cuh"
#include "gpu/ptx/wgmma.cuh"
#include "stages/fused/wgmma/pixels.cuh"

constexpr int PLANE_BYTES = VECS * IMAGES * VEC_BYTES;  // [12][IMAGES][12][a vector's channels]
constexpr int STEP2_BYTES = 64 * 2 * VEC_BYTES;     // [2][channel][vector]
constexpr int FILTER_ELEMENTS = 5 * 5;

// D[output channel][y][image][x]: an 8-wide output row under filter element (r, s) is 8 vectors side by side.
// Hands the turn on after PASS_STEP of the steps.
template <int STEPS, typename Sum>
__device__ __forceinline__ void convolve2(Sum (&d)[32 * IMAGES], u32 filters, u32 maps, u32 next,
                                          int lane) {
    constexpr int PARTS_OF_ELEMENT = STEPS / FILTER_ELEMENTS;
    u64 a = ptx::operand(filters, 64 * VEC_BYTES, 8 * VEC_BYTES);
    u64 b = ptx::operand(maps, PLANE_BYTES, SIDE * VEC_BYTES);
    ptx::here(a);
    ptx::here(b);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const int element = step / PARTS_OF_ELEMENT, part = step % PARTS_OF_ELEMENT;
        const int vecs = element / 5 * IMAGES * SIDE + element % 5 + part * 2 * VECS * IMAGES;
        if (step == 0)
            ptx::wgmma<false>(d, a, b);
        else
            ptx::wgmma<true>(d, a + step * STEP2_BYTES / 16, b + vecs);
        if (step + 1 == PASS_STEP && lane == 0) ptx::barrier_arrive(next);
    }
    ptx::wgmma_commit();
}

// conv2 with every filter element, [step][2][channel][vector] at `filters`. Like it are others that `carry`
// takes: what a thread holds of the filters is read when one is made.
template <typename T, int STEPS>
struct Dense {
    using Sum = T;
    static constexpr int MAP_BYTES = 2 * STEPS / FILTER_ELEMENTS * PLANE_BYTES;
    static constexpr int FILTER_BYTES = STEPS * STEP2_BYTES, PLANE_STEP = PLANE_BYTES;
    static constexpr u64 PAIR_ORDER = PAIRS_IN_LINE;
    u32 filters;

    __device__ __forceinline__ Dense(u32 filters, int) : filters(filters) {}
    __device__ __forceinline__ void multiply(Sum (&d)[32 * IMAGES], u32 maps, u32 next,
                                             int lane) const {
        convolve2<STEPS>(d, filters, maps, next, lane);
    }
};

// filters1: [step][2][dx and channel][8] fp16; filters2: as Kind's `Conv2` has them; rows of the
// last tile past image n get zeros. Kind is what fp16 and bytes do each in their own way: `Conv2`,
// where a lane begins in a 16-byte vector (`lane_offset`), how it stores conv1's sums (`store`), and the
// `mean`s of channels c and c + 8 in a pooled row; `load(c)` makes one.
template <typename Kind, typename Load>
__device__ __forceinline__ void carry(Images images, const unsigned char* filters1,
                                      const unsigned char* filters2, uint4* out, int n,
                                      Load load) {
    using Conv2 = typename Kind::Conv2;
    constexpr int MAP_BYTES = Conv2::MAP_BYTES;
    constexpr int FILTER2_BYTES = Conv2::FILTER_BYTES, LOAD_BYTES = FILTER2_BYTES / 5;
    constexpr int FILTER1_AT = FILTER2_BYTES, MAPS_AT = FILTER1_AT + FILTER1_BYTES;
    constexpr int IMAGES_AT = MAPS_AT + GROUPS * MAP_BYTES;
    constexpr int INTAKE_AT = IMAGES_AT + GROUPS * IMAGES * IMAGE_BYTES;
    constexpr int BARRIERS_AT = INTAKE_AT + GROUPS * Intake::BYTES;
    static_assert(BARRIERS_AT + 8 * (GROUPS + 2) == SHARED_BYTES, "the launcher's layout differs");
    static_assert(SHARED_BYTES <= 232448, "a block's shared memory on sm_90");

    extern __shared__ __align__(128) unsigned char memory[];
    const u32 base = ptx::shared(memory);
    const int group = __shfl_sync(~0u, int(threadIdx.x) / WARPGROUP, 0);
    const int tid = threadIdx.x % WARPGROUP, lane = threadIdx.x % 32;
    const int warp = __shfl_sync(~0u, tid / 32, 0);
    const u32 maps = base + MAPS_AT + group * MAP_BYTES;
    const u32 staged = base + IMAGES_AT + group * IMAGES * IMAGE_BYTES;
    const u32 loaded = base + BARRIERS_AT, turns = loaded + 16;
    const u32 turn = turns + 8 * group, next = turns + 8 * ((group + 1) % GROUPS);
    unsigned char* const own = memory + INTAKE_AT + group * Intake::BYTES;

    ptx::start_next_grid();
    if (threadIdx.x == 0) {
        ptx::barrier_init(loaded, 1);
        ptx::barrier_init(loaded + 8, 1);
        for (int g = 0; g < GROUPS; ++g) {
            ptx::barrier_init(turns + 8 * g, WARPGROUP / 32);
            Intake::begin(base + INTAKE_AT + g * Intake::BYTES);
        }
        ptx::barrier_init_fence();
        ptx::barrier_expect(loaded, FILTER1_BYTES);
        ptx::bulk_load(base + FILTER1_AT, filters1, FILTER1_BYTES, loaded);
        ptx::barrier_expect(loaded + 8, FILTER2_BYTES);
        for (int at = 0; at < FILTER2_BYTES; at += LOAD_BYTES)
            ptx::bulk_load(base + at, filters2 + at, LOAD_BYTES, loaded + 8);
    }
    const Offsets offsets = offsets_of(staged, warp, lane, Conv2::PAIR_ORDER);
    const u32 vecs = maps + offsets.vec + Kind::lane_offset(lane);
    const Kind kind = load(16 * warp + lane / 4);
    __syncthreads();
    ptx::wait_for_grid();
    if (group == GROUPS - 1 && lane == 0) ptx::barrier_arrive(next);

    const int groups = int(gridDim.x) * GROUPS;
    const int index_in_grid = group * int(gridDim.x) + int(blockIdx.x);
    const Share share(index_in_grid, groups, n);
    int first = share.first;
    Intake intake(images, own, share, n, tid);
    intake.fetch(first, 0);
    intake.stage(staged, first, 0);
    intake.fetch(first + share.stride, 1);
    for (u32 round = 0; first < share.end; ++round, first += share.stride) {
        ptx::sync(1 + group, WARPGROUP);
        if (round == 0) ptx::barrier_wait(loaded, 0);
        convolve1(base + FILTER1_AT, offsets.pair, [&](const float (&d)[32], int at) {
            Kind::store(vecs + tile_vec(at), d);
        });
        ptx::async_fence();
        ptx::sync(1 + group, WARPGROUP);
        if (round == 0) ptx::barrier_wait(loaded + 8, 0);
        const Conv2 conv2(base, tid);
        ptx::barrier_wait(turn, round & 1);

        typename Conv2::Sum d[32 * IMAGES];
        conv2.multiply(d, maps, next, lane);
        intake.stage(staged, first + share.stride, round + 1);
        intake.fetch(first + 2 * share.stride, round + 2);
        ptx::wgmma_wait<0>();
        ptx::settle(d);
#pragma unroll
        for (int i = 0; i < IMAGES; ++i) {
            u32 mean[4];
#pragma unroll
            for (int y = 0; y < 4; ++y) {
                const int top = 4 * (2 * y * IMAGES + i), bottom = top + 4 * IMAGES;
                mean[y] = kind.mean(d + top, d + bottom);
            }
            out[feature_vec(first + i, tid)] = {mean[0], mean[1], mean[2], mean[3]};
        }
    }
    const int rest = (n + IMAGES - 1) / IMAGES * IMAGES + index_in_grid * IMAGES;
    for (int i = 0; i < IMAGES; ++i) clear_rest(out, rest + i, groups * IMAGES, n, tid);
}

// fp16 0..255 to the nearest whole number in a half's low byte: 0x6400 | byte is 1024 + byte.
__device__ __forceinline__ u32 to_bytes(u32 pair) {
    constexpr u32 MOST = 0x5bf85bf8, BIAS = 0x64006400;
    return ptx::add2(ptx::min2(pair, MOST), BIAS);
}

// The Kind whose maps and filters of conv2 are bytes, its sums int32; a vector holds 16 channels. A
// sum of four times `scale` is channel c's mean, times `scale_8` channel c + 8's.
template <typename Product>
struct Bytes {
    using Conv2 = Product;
    float scale, scale_8;

    __device__ __forceinline__ static u32 lane_offset(int lane) {
        return lane % 4 / 2 * Conv2::PLANE_STEP + lane % 2 * 8;
    }
    // [channel/16] planes.
    __device__ __forceinline__ static void store(u32 to, const float (&d)[32]) {
        u32 b[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) b[k] = to_bytes(pool_pair(d + 8 * k));
        constexpr u32 LOW_BYTES = 0x6420;
        ptx::store_shared(
            to, make_uint2(__byte_perm(b[0], b[1], LOW_BYTES), __byte_perm(b[2], b[3], LOW_BYTES)));
    }
    // The sum of four ReLUs; sum + max(b, 0) is one instruction as it stands here.
    __device__ __forceinline__ static int pool(int a, int b, int c, int d) {
        int sum = max(a, 0);
        sum = max(sum + b, sum);
        sum = max(sum + c, sum);
        return max(sum + d, sum);
    }
    __device__ __forceinline__ u32 mean(const int* top, const int* bottom) const {
        return ptx::half2(scale * pool(top[0], top[1], bottom[0], bottom[1]),
                          scale_8 * pool(top[2], top[3], bottom[2], bottom[3]));
    }
};

// filters2 are bytes; scales: what a channel's sums of four are multiplied by.
template <typename Product>
__device__ __forceinline__ void carry_bytes(Images images, const unsigned char* filters1,
                                            const unsigned char* filters2, const float* scales,
                                            uint4* out, int n) {
    carry<Bytes<Product>>(images, filters1, filters2, out, n, [=](int channel) {
        return Bytes<Product>{__ldg(scales + channel), __ldg(scales + channel + 8)};
    });
}
