// Images to pool2's features in one kernel: conv1 on wgmma in fp16, its pooled maps and conv2's
// filters as bytes at twice the rate, exact int32 sums. The scale of the maps is one for the whole
// network and lies in conv1's filters, the scales of conv2's filters one a channel.
// A block stays on its multiprocessor with the filters in shared memory; each of its GROUPS
// warpgroups carries two images at a time from pixels to features. conv2 reads conv1's cells of 16
// channels where they lie; the warpgroups take turns at it. sm_90a, any n >= 1.
#include "stages/fused/wgmma/conv2.cuh"

constexpr int MAP_BYTES = 2 * PLANE_BYTES;  // [channel/16] planes
constexpr int STEPS = TAPS, FILTER2_BYTES = STEPS * STEP2_BYTES;
constexpr int FILTER1_AT = FILTER2_BYTES, MAPS_AT = FILTER1_AT + FILTER1_BYTES;
constexpr int IMAGES_AT = MAPS_AT + GROUPS * MAP_BYTES;
constexpr int BARRIERS_AT = IMAGES_AT + GROUPS * IMAGES * IMAGE_BYTES;

static_assert(BARRIERS_AT + 8 * (GROUPS + 2) == SHARED_BYTES, "the launcher's layout differs");
static_assert(SHARED_BYTES <= 232448, "a block's shared memory on sm_90");

__device__ __forceinline__ int pool(int a, int b, int c, int d) {
    return (max(a, 0) + max(b, 0)) + (max(c, 0) + max(d, 0));
}
// fp16 0..255 to the nearest whole number in a half's low byte: 0x6400 | byte is 1024 + byte.
__device__ __forceinline__ u32 to_bytes(u32 pair) {
    constexpr u32 MOST = 0x5bf85bf8, BIAS = 0x64006400;
    return ptx::add2(ptx::min2(pair, MOST), BIAS);
}

// filters1: [step][2][dx and channel][8] fp16; filters2: [tap][2][channel][16] bytes; scales: what
// a channel's sums of four are multiplied by. Rows of the last tile past image n get zeros.
extern "C" __global__ void __launch_bounds__(GROUPS* WARPGROUP, 1)
    int8_features(const Pixel* __restrict__ images, const unsigned char* __restrict__ filters1,
                  const unsigned char* __restrict__ filters2, const float* __restrict__ scales,
                  uint4* __restrict__ out, int n) {
    extern __shared__ __align__(128) unsigned char memory[];
    const u32 base = ptx::shared(memory);
    const int group = __shfl_sync(~0u, int(threadIdx.x) / WARPGROUP, 0);
    const int tid = threadIdx.x % WARPGROUP, lane = threadIdx.x % 32;
    const int warp = __shfl_sync(~0u, tid / 32, 0);
    const u32 maps = base + MAPS_AT + group * MAP_BYTES;
    const u32 staged = base + IMAGES_AT + group * IMAGES * IMAGE_BYTES;
    const u32 loaded = base + BARRIERS_AT, turns = loaded + 16;
    const u32 turn = turns + 8 * group, next = turns + 8 * ((group + 1) % GROUPS);

    ptx::start_next_grid();
    if (threadIdx.x == 0) {
        ptx::barrier_init(loaded, 1);
        ptx::barrier_init(loaded + 8, 1);
        for (int g = 0; g < GROUPS; ++g) ptx::barrier_init(turns + 8 * g, WARPGROUP / 32);
        ptx::barrier_init_fence();
        ptx::barrier_expect(loaded, FILTER1_BYTES);
        ptx::bulk_load(base + FILTER1_AT, filters1, FILTER1_BYTES, loaded);
        ptx::barrier_expect(loaded + 8, FILTER2_BYTES);
        for (int at = 0; at < FILTER2_BYTES; at += 5 * STEP2_BYTES)
            ptx::bulk_load(base + at, filters2 + at, 5 * STEP2_BYTES, loaded + 8);
    }
    const Place place = place_of(staged, warp, lane);
    const u32 cells = maps + place.cell + lane % 4 / 2 * PLANE_BYTES + lane % 2 * 8;
    const int channel = 16 * warp + lane / 4;
    const float scale = __ldg(scales + channel), scale_8 = __ldg(scales + channel + 8);
    __syncthreads();
    ptx::wait_for_grid();
    if (group == GROUPS - 1 && lane == 0) ptx::barrier_arrive(next);

    const int stride = int(gridDim.x) * GROUPS * IMAGES;
    int first = (group * int(gridDim.x) + int(blockIdx.x)) * IMAGES;
    Pixels pixels;
    fetch(pixels, images, first, n, tid);
    stage(staged, pixels, tid);
    fetch(pixels, images, first + stride, n, tid);
    for (u32 round = 0; first < n; ++round, first += stride) {
        ptx::sync(1 + group, WARPGROUP);
        if (round == 0) ptx::barrier_wait(loaded, 0);
        convolve1(base + FILTER1_AT, place.pair, [&](const float (&d)[32], int at) {
            u32 b[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) b[k] = to_bytes(pool_pair(d + 8 * k));
            constexpr u32 LOW_BYTES = 0x6420;
            ptx::store_shared(
                cells + tile_cell(at),
                make_uint2(__byte_perm(b[0], b[1], LOW_BYTES), __byte_perm(b[2], b[3], LOW_BYTES)));
        });
        ptx::async_fence();
        ptx::sync(1 + group, WARPGROUP);
        if (round == 0) ptx::barrier_wait(loaded + 8, 0);
        ptx::barrier_wait(turn, round & 1);

        int d[32 * IMAGES];
        convolve2<STEPS>(d, base, maps, next, lane);
        stage(staged, pixels, tid);
        fetch(pixels, images, first + 2 * stride, n, tid);
        ptx::wgmma_wait<0>();
        ptx::settle(d);
#pragma unroll
        for (int i = 0; i < IMAGES; ++i) {
            u32 mean[4];
#pragma unroll
            for (int y = 0; y < 4; ++y) {
                const int top = 4 * (2 * y * IMAGES + i), bottom = top + 4 * IMAGES;
                mean[y] = ptx::half2(
                    scale * pool(d[top], d[top + 1], d[bottom], d[bottom + 1]),
                    scale_8 * pool(d[top + 2], d[top + 3], d[bottom + 2], d[bottom + 3]));
            }
            out[feature_cell(first + i, tid)] = {mean[0], mean[1], mean[2], mean[3]};
        }
    }
    for (int i = 0; i < IMAGES; ++i) clear_rest(out, first + i, stride, n, tid);
}
