// Images to pooled conv2 features at fp32 accuracy on tensor cores: operands are split into fp16
// hi + lo and multiplied hi*hi + hi*lo + lo*hi; tensor cores truncate as they accumulate, so sums
// of a few filter taps move to fp32 registers (Ootomo & Yokota, arXiv 2203.03341).
// A block takes four images at a time: one warpgroup turns pixels into windows and conv1 into
// split activations [part][channel/8][y][image][x][8]; two warpgroups run conv2 on two images each,
// wgmma reading those activations as they lie while conv2's taps stream from L2 through a ring.
// uint8 pixels are exact in fp16 (two products); float pixels are split as well, |x| <= 4.
#include "ptx_split.cuh"

constexpr int PAIR = 2;
constexpr int GROUPS = 2;
constexpr int BATCH = PAIR * GROUPS;
constexpr int WARPGROUP = 128;
constexpr int CELL = 16; // eight halves
constexpr int PARTS = 2; // hi, lo
constexpr int IMAGE = 28;
constexpr int SIDE = 12;
constexpr int MAPS1 = 32;
constexpr int MAPS2 = 64;
constexpr int FILTER = 5;
constexpr int TAPS = FILTER * FILTER;

#if FLOAT_PIXELS
using Pixel = float;
constexpr int PIXEL_PARTS = 2;
constexpr int WINDOW_BUFFERS = 1;
#else
using Pixel = unsigned char;
constexpr int PIXEL_PARTS = 1;
constexpr int WINDOW_BUFFERS = 2;
#endif

// Windows: [row parity][row / 2][pooled column][8 pixels from twice that column].
constexpr int WINDOW_ROWS = IMAGE / 2;
constexpr int PARITY_BYTES = WINDOW_ROWS * SIDE * CELL;
constexpr int WINDOWS_BYTES = 2 * PARITY_BYTES;
constexpr int WINDOW_CELLS = WINDOWS_BYTES / CELL;
constexpr int PIXELS = IMAGE * IMAGE;
constexpr int PIXEL_BYTES = PIXELS * sizeof(Pixel);

constexpr int ROW_BYTES = SIDE * CELL;
constexpr int CHANNELS_BYTES = SIDE * PAIR * ROW_BYTES;
constexpr int PART_BYTES = MAPS1 / 8 * CHANNELS_BYTES;
constexpr int PAIR_BYTES = PARTS * PART_BYTES;
constexpr int BUFFERS = 2 * GROUPS;

// A tap of conv2: [part][channel/8][map][8].
constexpr int TAP_COLUMN_BYTES = MAPS2 * CELL;
constexpr int TAP_PART_BYTES = MAPS1 / 8 * TAP_COLUMN_BYTES;
constexpr int TAP_BYTES = PARTS * TAP_PART_BYTES;

constexpr int RING = 0;
constexpr int MAPS = RING + STAGES * TAP_BYTES;
constexpr int WINDOWS = MAPS + BUFFERS * PAIR_BYTES;
constexpr int PAIR_WINDOWS_BYTES = PIXEL_PARTS * PAIR * WINDOWS_BYTES;
constexpr int RAW = WINDOWS + WINDOW_BUFFERS * PAIR_WINDOWS_BYTES;
constexpr int RAW_BYTES = PAIR * PIXEL_BYTES + CELL;
constexpr int BARRIERS = RAW + 2 * RAW_BYTES;
constexpr int TAP_FULL = BARRIERS;
constexpr int PIXELS_FULL = TAP_FULL + 8 * STAGES;
constexpr int MAPS_FULL = PIXELS_FULL + 8 * 2;
constexpr int MAPS_FREE = MAPS_FULL + 8 * BUFFERS;
constexpr int RELEASED = MAPS_FREE + 8 * BUFFERS;
constexpr int SHARED_USED = RELEASED + 4 * STAGES;

static_assert(SHARED_USED <= SHARED_BYTES, "the launcher asks for too little shared memory");
static_assert(0 < PROMOTE && PROMOTE < FILTER, "a filter row is summed in two parts");
static_assert(PROMOTE < STAGES && FILTER - PROMOTE < STAGES, "the ring holds the taps of a part");
static_assert(CLASSIFIER_IMAGES % 8 == 0 && CLASSIFIER_CELLS % 8 == 0, "core matrices are 8 rows");

DEVICE void load_tap(u32 shared, const uint4 *filters2, int stage, int tap) {
    const u32 full = shared + TAP_FULL + 8 * stage;
    barrier_expect(full, TAP_BYTES);
    bulk_load(shared + RING + stage * TAP_BYTES, filters2 + tap * (TAP_BYTES / CELL), TAP_BYTES, full);
}

DEVICE int first_image(int pair) {
    return (blockIdx.x + (pair / GROUPS) * gridDim.x) * BATCH + (pair % GROUPS) * PAIR;
}

DEVICE void load_pixels(u32 shared, const Pixel *images, int count, int pair) {
    const u32 full = shared + PIXELS_FULL + 8 * (pair & 1);
    const int first = first_image(pair);
    const int present = min(max(count - first, 0), PAIR);
    barrier_expect(full, present * PIXEL_BYTES);
    if (present > 0) {
        bulk_load(shared + RAW + (pair & 1) * RAW_BYTES, images + size_t(first) * PIXELS,
                  present * PIXEL_BYTES, full);
    }
}

#if FLOAT_PIXELS
DEVICE void write_window(char *windows, const char *raw, int image, int row, int column, int cell) {
    const float *from = reinterpret_cast<const float *>(raw) + image * PIXELS + row * IMAGE + 2 * column;
    u32 high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float2 pixels = reinterpret_cast<const float2 *>(from)[i];
        if (i == 3 && column == SIDE - 1) pixels = make_float2(0.0f, 0.0f);
        const float a = pixels.x * PIXEL_SCALE, b = pixels.y * PIXEL_SCALE;
        high[i] = halves(a, b);
        low[i] = halves(a - low_half(high[i]), b - high_half(high[i]));
    }
    uint4 *to = reinterpret_cast<uint4 *>(windows + image * WINDOWS_BYTES) + cell;
    *to = make_uint4(high[0], high[1], high[2], high[3]);
    to[PAIR * WINDOW_CELLS] = make_uint4(low[0], low[1], low[2], low[3]);
}
#else
// 0x6400 | byte is 1024 + byte as a half.
DEVICE u32 widen(u32 bytes, u32 selector) {
    return subtract_halves(__byte_perm(bytes, 0x64646464u, selector), 0x64006400u);
}

DEVICE void write_window(char *windows, const char *raw, int image, int row, int column, int cell) {
    const int offset = image * PIXELS + row * IMAGE + 2 * column;
    const u32 *from = reinterpret_cast<const u32 *>(raw) + offset / 4;
    const u32 selector = offset & 2 ? 0x5432 : 0x3210;
    const u32 middle = from[1];
    const u32 left = __byte_perm(from[0], middle, selector);
    const u32 right = __byte_perm(middle, from[2], selector);
    reinterpret_cast<uint4 *>(windows + image * WINDOWS_BYTES)[cell] = make_uint4(
        widen(left, 0x4140), widen(left, 0x4342), widen(right, 0x4140), widen(right, 0x4342));
}
#endif

// Of one image, from the pixels of pair `pair`.
DEVICE void write_windows(char *memory, int pair, int image) {
    char *windows = memory + WINDOWS + pair % WINDOW_BUFFERS * PAIR_WINDOWS_BYTES;
    const char *raw = memory + RAW + (pair & 1) * RAW_BYTES;
#pragma unroll 1
    for (int cell = threadIdx.x; cell < WINDOW_CELLS; cell += WARPGROUP) {
        const int row = cell / SIDE;
        write_window(windows, raw, image, 2 * (row % WINDOW_ROWS) + row / WINDOW_ROWS, cell % SIDE, cell);
    }
}

constexpr int STEPS1 = 3; // six input rows of eight pixels, two rows a step
constexpr int SUMS1 = SIDE * SIDE / 2; // accumulators of a thread
constexpr int GROUPS1 = SIDE * SIDE / 8;

using Filter = u32[PARTS][STEPS1][4];

DEVICE void load_filter(Filter &filter, const uint4 *filters1, int dy) {
#pragma unroll
    for (int i = 0; i < PARTS * STEPS1; ++i) {
        load_here(filter[i / STEPS1][i % STEPS1],
                  filters1 + (dy * PARTS * STEPS1 + i) * WARPGROUP + threadIdx.x);
    }
}

template <bool add>
DEVICE void multiply_steps(float (&d)[SUMS1], const u32 (&filter)[STEPS1][4], u64 windows) {
#pragma unroll
    for (int step = 0; step < STEPS1; ++step) {
        if (add || step > 0) multiply_64x144<true>(d, filter[step], windows + step * (ROW_BYTES / CELL));
        else multiply_64x144<false>(d, filter[step], windows);
    }
}

DEVICE void multiply_windows(float (&d)[SUMS1], const Filter &filter, u32 address) {
    const u64 windows = operand(address, PARITY_BYTES, 8 * CELL);
    wgmma_fence();
    multiply_steps<false>(d, filter[1], windows);
#if FLOAT_PIXELS
    multiply_steps<true>(d, filter[0], windows + PAIR * WINDOW_CELLS);
#endif
    multiply_steps<true>(d, filter[0], windows);
    wgmma_commit();
}

DEVICE float rectified_sum(float a, float b) { return fmaxf(a, 0.0f) + fmaxf(b, 0.0f); }

// `above` and `below` are pooling windows' rows dy = 0, summed already, and 1; rows g and g + 8 of a
// warp's accumulators are dx = 0 and 1.
DEVICE void store_maps(const float (&above)[SUMS1 / 2], const float (&below)[SUMS1], const u32 (&rows)[3],
                       u32 offset, float scale) {
#pragma unroll
    for (int j = 0; j < GROUPS1; ++j) {
        const float a = scale * (above[2 * j] + rectified_sum(below[4 * j], below[4 * j + 2]));
        const float b = scale * (above[2 * j + 1] + rectified_sum(below[4 * j + 1], below[4 * j + 3]));
        const u32 high = halves(a, b);
        const u32 low = halves(a - low_half(high), b - high_half(high));
        store_transposed(rows[j % 3] + offset + j / 3 * (2 * PAIR * ROW_BYTES), high, low);
    }
}

DEVICE void produce(char *memory, u32 shared, const Pixel *images, int count, const uint4 *filters1,
                    float scale, int pairs) {
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    u32 rows[3]; // of this lane's position in groups j = 0, 1, 2 (mod 3)
#pragma unroll
    for (int j = 0; j < 3; ++j) {
        const int position = 8 * j + lane % 8;
        rows[j] = shared + MAPS + lane / 8 % 2 * PART_BYTES + warp * CHANNELS_BYTES +
                  (position / SIDE * PAIR * SIDE + position % SIDE) * CELL;
    }
    if (thread == 0) {
        for (int pair = 0; pair < 2; ++pair) load_pixels(shared, images, count, pair);
    }
    Filter filter;
    load_filter(filter, filters1, 0);
    float above[SUMS1 / 2];
#pragma unroll
    for (int i = 0; i < SUMS1 / 2; ++i) above[i] = 0.0f;
    barrier_wait(shared + PIXELS_FULL, 0);
    for (int image = 0; image < PAIR; ++image) write_windows(memory, 0, image);
    async_fence();
    group_sync(1, WARPGROUP);
    for (int pair = 0; pair < pairs; ++pair) {
        const int buffer = pair % BUFFERS, next = pair + 1;
        if (thread == 0 && pair + 2 < pairs) load_pixels(shared, images, count, pair + 2);
        if (next < pairs) barrier_wait(shared + PIXELS_FULL + 8 * (next & 1), next / 2 & 1);
        barrier_wait(shared + MAPS_FREE + 8 * buffer, (pair / BUFFERS & 1) ^ 1);
#pragma unroll 1
        for (int part = 0; part < 2 * PAIR; ++part) {
            const int image = part / 2, dy = part % 2;
            float sums[SUMS1];
            multiply_windows(sums, filter,
                             shared + WINDOWS + pair % WINDOW_BUFFERS * PAIR_WINDOWS_BYTES +
                                 image * WINDOWS_BYTES);
            if (WINDOW_BUFFERS == 2 && dy == 0 && next < pairs) write_windows(memory, next, image);
            wgmma_wait<0>();
            settle(sums);
            load_filter(filter, filters1, 1 - dy);
            if (dy == 0) {
#pragma unroll
                for (int i = 0; i < SUMS1 / 2; ++i) {
                    above[i] = rectified_sum(sums[i / 2 * 4 + i % 2], sums[i / 2 * 4 + i % 2 + 2]);
                }
            } else {
                store_maps(above, sums, rows, buffer * PAIR_BYTES + image * ROW_BYTES, scale);
            }
        }
        async_fence();
        barrier_arrive(shared + MAPS_FULL + 8 * buffer);
        group_sync(1, WARPGROUP); // every warp has read the windows, and written the next
        if (WINDOW_BUFFERS == 1 && next < pairs) {
            for (int image = 0; image < PAIR; ++image) write_windows(memory, next, image);
            async_fence();
            group_sync(1, WARPGROUP);
        }
    }
}

constexpr int TAP_STEP = 2 * TAP_COLUMN_BYTES / CELL; // 16 channels on, in descriptor units
constexpr int MAP_STEP = 2 * CHANNELS_BYTES / CELL;

// The low products, which an empty accumulator takes without loss, then the high ones.
template <bool add> DEVICE void multiply_low(float (&d)[MAPS2], u32 tap, u32 maps) {
    const u64 high = operand(tap, TAP_COLUMN_BYTES, 8 * CELL);
    const u64 low = high + TAP_PART_BYTES / CELL;
    const u64 map_high = operand(maps, CHANNELS_BYTES, ROW_BYTES);
    const u64 map_low = map_high + PART_BYTES / CELL;
    multiply_64x128<add>(d, low, map_high);
    multiply_64x128<true>(d, low + TAP_STEP, map_high + MAP_STEP);
    multiply_64x128<true>(d, high, map_low);
    multiply_64x128<true>(d, high + TAP_STEP, map_low + MAP_STEP);
}

DEVICE void multiply_high(float (&d)[MAPS2], u32 tap, u32 maps) {
    const u64 high = operand(tap, TAP_COLUMN_BYTES, 8 * CELL);
    const u64 map_high = operand(maps, CHANNELS_BYTES, ROW_BYTES);
    multiply_64x128<true>(d, high, map_high);
    multiply_64x128<true>(d, high + TAP_STEP, map_high + MAP_STEP);
}

struct Ring {
    int stage = 0;
    u32 parity = 0;
    int tap = 0;
    int left; // taps this block has yet to multiply

    DEVICE void advance() {
        --left;
        if (++tap == TAPS) tap = 0;
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// The last of the convolving warps to finish with a tap loads the one that follows STAGES later.
template <int taps> DEVICE void release_taps(u32 shared, const uint4 *filters2, const Ring &first) {
    const int i = threadIdx.x % 32;
    if (i >= taps) return;
    const int stage = (first.stage + i) % STAGES;
    const u32 before = atomic_increment(shared + RELEASED + 4 * stage);
    if ((before + 1) % (GROUPS * WARPGROUP / 32) == 0 && first.left - i > STAGES) {
        load_tap(shared, filters2, stage, (first.tap + i + STAGES) % TAPS);
    }
}

// Neighbouring taps of a filter row summed on the tensor cores, then in fp32 registers.
template <int taps>
DEVICE void add_taps(float (&sum)[MAPS2], u32 shared, const uint4 *filters2, Ring &ring, u32 window,
                     int group) {
    const Ring first = ring;
    float d[MAPS2];
    u32 tap[taps];
#if ALTERNATE
    group_sync(2 + group, GROUPS * WARPGROUP);
#endif
#pragma unroll
    for (int i = 0; i < taps; ++i) {
        tap[i] = shared + RING + ring.stage * TAP_BYTES;
        barrier_wait(shared + TAP_FULL + 8 * ring.stage, ring.parity);
        wgmma_fence();
        if (i == 0) multiply_low<false>(d, tap[i], window);
        else multiply_low<true>(d, tap[i], window + i * CELL);
        ring.advance();
    }
    wgmma_commit();
#pragma unroll
    for (int i = 0; i < taps; ++i) multiply_high(d, tap[i], window + i * CELL);
    wgmma_commit();
#if ALTERNATE
    wgmma_wait<1>();
    if (group == 0 || ring.left > 0) group_arrive(3 - group, GROUPS * WARPGROUP);
#endif
    wgmma_wait<0>();
    settle(d);
#pragma unroll
    for (int i = 0; i < MAPS2; ++i) sum[i] += d[i];
    release_taps<taps>(shared, filters2, first);
}

DEVICE size_t feature_cell(int image, int cell, int part) {
    const int block = image / CLASSIFIER_IMAGES, row = image % CLASSIFIER_IMAGES;
    constexpr int chunks = MAPS2 * SIDE * SIDE / 9 / 8 / CLASSIFIER_CELLS;
    const size_t chunk = size_t(block) * chunks + cell / CLASSIFIER_CELLS;
    return (((chunk * PARTS + part) * (CLASSIFIER_IMAGES / 8) + row / 8) * CLASSIFIER_CELLS +
            cell % CLASSIFIER_CELLS) * 8 + row % 8;
}

// Position groups are [row][image]; a cell of features is [pooled row][map, map + 8] of one thread.
DEVICE void store_features(const float (&sum)[MAPS2], uint4 *features, int first, int count, float scale) {
    const int thread = threadIdx.x % WARPGROUP;
#pragma unroll
    for (int image = 0; image < PAIR; ++image) {
        u32 high[4], low[4];
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            const int top = 4 * (2 * row * PAIR + image), bottom = top + 4 * PAIR;
            const float a = scale * (rectified_sum(sum[top], sum[top + 1]) + rectified_sum(sum[bottom], sum[bottom + 1]));
            const float b = scale * (rectified_sum(sum[top + 2], sum[top + 3]) + rectified_sum(sum[bottom + 2], sum[bottom + 3]));
            high[row] = halves(a, b);
            low[row] = halves(a - low_half(high[row]), b - high_half(high[row]));
        }
        if (first + image < count) {
            features[feature_cell(first + image, thread, 0)] = make_uint4(high[0], high[1], high[2], high[3]);
            features[feature_cell(first + image, thread, 1)] = make_uint4(low[0], low[1], low[2], low[3]);
        }
    }
}

DEVICE void convolve(u32 shared, const uint4 *filters2, uint4 *features, int count, float scale, int group,
                     int pairs) {
    Ring ring;
    ring.left = pairs / GROUPS * TAPS;
#if ALTERNATE
    if (group == 1) group_arrive(2, GROUPS * WARPGROUP);
#endif
    for (int pair = group; pair < pairs; pair += GROUPS) {
        const int buffer = pair % BUFFERS;
        const u32 maps = shared + MAPS + buffer * PAIR_BYTES;
        float sum[MAPS2];
#pragma unroll
        for (int i = 0; i < MAPS2; ++i) sum[i] = 0.0f;
        barrier_wait(shared + MAPS_FULL + 8 * buffer, pair / BUFFERS & 1);
#pragma unroll 1
        for (int row = 0; row < FILTER; ++row) {
            const u32 window = maps + row * PAIR * ROW_BYTES;
            add_taps<PROMOTE>(sum, shared, filters2, ring, window, group);
            add_taps<FILTER - PROMOTE>(sum, shared, filters2, ring, window + PROMOTE * CELL, group);
        }
        barrier_arrive(shared + MAPS_FREE + 8 * buffer);
        store_features(sum, features, first_image(pair), count, scale);
    }
}

extern "C" __global__ void __launch_bounds__((1 + GROUPS) * WARPGROUP, 1)
split_features(const Pixel *__restrict__ images, const uint4 *__restrict__ filters1,
               const uint4 *__restrict__ filters2, uint4 *__restrict__ features, int count, float scale1,
               float scale2) {
    extern __shared__ __align__(128) char memory[];
    const u32 shared = shared_address(memory);
    const int batches = (count + BATCH - 1) / BATCH;
    const int pairs = GROUPS * ((batches - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x));
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(shared + TAP_FULL + 8 * i, 1);
            *reinterpret_cast<u32 *>(memory + RELEASED + 4 * i) = 0;
        }
        for (int i = 0; i < 2; ++i) barrier_init(shared + PIXELS_FULL + 8 * i, 1);
        for (int i = 0; i < BUFFERS; ++i) {
            barrier_init(shared + MAPS_FULL + 8 * i, WARPGROUP);
            barrier_init(shared + MAPS_FREE + 8 * i, WARPGROUP);
        }
        barrier_init_fence();
        async_fence();
    }
    __syncthreads();
    const int group = threadIdx.x / WARPGROUP;
    if (group == 0) {
        produce(memory, shared, images, count, filters1, scale1, pairs);
    } else {
        if (threadIdx.x == WARPGROUP) {
            for (int i = 0; i < STAGES; ++i) load_tap(shared, filters2, i, i % TAPS);
        }
        convolve(shared, filters2, features, count, scale2, group - 1, pairs);
    }
}
