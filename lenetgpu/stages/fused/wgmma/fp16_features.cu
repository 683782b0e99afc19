// Images to pool2's features in one kernel, both convolutions on wgmma with fp32 sums.
// A block stays on its multiprocessor with the filters in shared memory; each of its GROUPS
// warpgroups carries two images at a time from pixels to features. conv2 reads conv1's pooled cells
// of 8 channels where they lie, no im2col. The warpgroups take turns at conv2, so that one feeds
// the tensor cores while the others do conv1, pool and store. sm_90a, any n >= 1.
#include "stages/fused/wgmma/conv2.cuh"

constexpr int MAP_BYTES = 4 * PLANE_BYTES;  // [channel/8] planes
constexpr int STEPS = 2 * TAPS, FILTER2_BYTES = STEPS * STEP2_BYTES;
constexpr int FILTER1_AT = FILTER2_BYTES, MAPS_AT = FILTER1_AT + FILTER1_BYTES;
constexpr int IMAGES_AT = MAPS_AT + GROUPS * MAP_BYTES;
constexpr int BARRIERS_AT = IMAGES_AT + GROUPS * IMAGES * IMAGE_BYTES;

static_assert(BARRIERS_AT + 8 * (GROUPS + 2) == SHARED_BYTES, "the launcher's layout differs");
static_assert(SHARED_BYTES <= 232448, "a block's shared memory on sm_90");

// Twice the sum of four ReLUs.
__device__ __forceinline__ float pool(float a, float b, float c, float d) {
    return ((a + fabsf(a)) + (b + fabsf(b))) + ((c + fabsf(c)) + (d + fabsf(d)));
}

// filters1: [step][2][dx and channel][8], filters2: [step][2][channel][8], fp16; rows of the last
// tile past image n get zeros.
extern "C" __global__ void __launch_bounds__(GROUPS* WARPGROUP, 1)
    features(const Pixel* __restrict__ images, const unsigned char* __restrict__ filters1,
             const unsigned char* __restrict__ filters2, uint4* __restrict__ out, int n) {
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
        for (int at = 0; at < FILTER2_BYTES; at += 10 * STEP2_BYTES)
            ptx::bulk_load(base + at, filters2 + at, 10 * STEP2_BYTES, loaded + 8);
    }
    const Place place = place_of(staged, warp, lane);
    const u32 cells = maps + place.cell + lane % 4 * 4;
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
#pragma unroll
            for (int plane = 0; plane < 4; ++plane)
                ptx::store_shared(cells + tile_cell(at) + plane * PLANE_BYTES,
                                  pool_pair(d + 8 * plane));
        });
        ptx::async_fence();
        ptx::sync(1 + group, WARPGROUP);
        if (round == 0) ptx::barrier_wait(loaded + 8, 0);
        ptx::barrier_wait(turn, round & 1);

        float d[32 * IMAGES];
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
                mean[y] =
                    ptx::half2(0.125f * pool(d[top], d[top + 1], d[bottom], d[bottom + 1]),
                               0.125f * pool(d[top + 2], d[top + 3], d[bottom + 2], d[bottom + 3]));
            }
            out[feature_cell(first + i, tid)] = {mean[0], mean[1], mean[2], mean[3]};
        }
    }
    for (int i = 0; i < IMAGES; ++i) clear_rest(out, first + i, stride, n, tid);
}
