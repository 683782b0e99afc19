// Images to pool2's features in one kernel, both convolutions on mma.sync with fp32 sums (sm_80).
// SHARE warps carry an image from pixels to features. conv1's rows are pixels of pooled windows, in
// pairs, conv2's are conv1's pooled cells of 8 channels, by ldmatrix where they lie: no im2col; a
// window's four sums meet in one thread. conv2's filters stream through a ring the block shares.
// PARTS 1: fp16 operands. PARTS 2: fp16 hi + lo, products hi*hi + hi*lo + lo*hi, a tap's sums moved
// to fp32 registers, since tensor cores truncate (Ootomo and Yokota, arXiv 2203.03341). Any n >= 1.
#include "gpu/ptx/mma.cuh"

using ptx::u32;

constexpr int WARP = 32, THREADS = WARPS * WARP;
constexpr int IMAGES = WARPS / SHARE;
constexpr int SIDE = 28, PIXELS = SIDE * SIDE, ROW_BYTES = SIDE * 2;
constexpr int PIXEL_BYTES = PIXELS * 2;                    // a part of an image: fp16
constexpr int CELL = 16;                                   // bytes: 8 fp16
constexpr int POOLED = 12, HALF_ROW = POOLED / 2 * CELL;   // columns of one parity lie together
constexpr int PARITY = POOLED * HALF_ROW, PLANE = 2 * PARITY;
constexpr int MAP_BYTES = 4 * PLANE;                       // [channel/8][x % 2][y][x / 2][8]
constexpr int FILTER = 5, CHANNELS = 64;
constexpr int PAIR_BYTES = WARP * CELL;                    // 16 K x 16 outputs, as lanes read them
constexpr int STAGE_BYTES = 4096;                          // a tap, or half of its outputs
constexpr int STAGES = 2 * PARTS + 1;                      // a tap, the next one, and a stage more
constexpr int FILTERS_BYTES = FILTER * FILTER * PARTS * STAGE_BYTES;
constexpr int FEATURES = 1024;
constexpr int PIXEL_PARTS = UINT8_PIXELS ? 1 : PARTS;
constexpr int TAPS_AT_ONCE = PARTS == 1 ? FILTER : 1;

constexpr int RING_AT = 0, MAPS_AT = STAGES * STAGE_BYTES;
constexpr int PIXELS_AT = MAPS_AT + IMAGES * PARTS * MAP_BYTES;

static_assert(PARTS == 1 || PARTS == 2, "fp16, or hi and lo");
static_assert(SHARE == 1 || SHARE == 2, "a warp takes an image or half of its rows");
static_assert(PIXELS_AT + IMAGES * PIXEL_PARTS * PIXEL_BYTES == SHARED_BYTES,
              "the launcher's layout differs");
static_assert(SHARED_BYTES <= 99 * 1024, "a block's shared memory on sm_86, sm_89 and sm_120");

#if UINT8_PIXELS
using Pixel = unsigned char;
using Patch = uint2;                                       // 8 pixels
__device__ __forceinline__ Patch load(const Pixel* from) {
    return __ldg(reinterpret_cast<const uint2*>(from));
}
// Bytes become fp16 exactly: 0x6400 | byte is 1024 + byte.
__device__ __forceinline__ void stage(u32 to, Patch p) {
    constexpr u32 K = 0x64006400, B = 0x64646464;
    ptx::store_shared(to, uint4{ptx::subtract2(__byte_perm(p.x, B, 0x4140), K),
                                ptx::subtract2(__byte_perm(p.x, B, 0x4342), K),
                                ptx::subtract2(__byte_perm(p.y, B, 0x4140), K),
                                ptx::subtract2(__byte_perm(p.y, B, 0x4342), K)});
}
#else
using Pixel = float;
struct Patch {
    float4 a, b;
};
__device__ __forceinline__ Patch load(const Pixel* from) {
    const float4* words = reinterpret_cast<const float4*>(from);
    return {__ldg(words), __ldg(words + 1)};
}
__device__ __forceinline__ void stage(u32 to, Patch p) {
    p.a.x *= PIXEL_SCALE, p.a.y *= PIXEL_SCALE, p.a.z *= PIXEL_SCALE, p.a.w *= PIXEL_SCALE;
    p.b.x *= PIXEL_SCALE, p.b.y *= PIXEL_SCALE, p.b.z *= PIXEL_SCALE, p.b.w *= PIXEL_SCALE;
    const uint4 high{ptx::half2(p.a.x, p.a.y), ptx::half2(p.a.z, p.a.w),
                     ptx::half2(p.b.x, p.b.y), ptx::half2(p.b.z, p.b.w)};
    ptx::store_shared(to, high);
    if (PIXEL_PARTS == 2)
        ptx::store_shared(
            to + PIXEL_BYTES,
            uint4{ptx::rest2(p.a.x, p.a.y, high.x), ptx::rest2(p.a.z, p.a.w, high.y),
                  ptx::rest2(p.b.x, p.b.y, high.z), ptx::rest2(p.b.z, p.b.w, high.w)});
}
#endif
constexpr int PATCHES = PIXELS / 8, PATCHES_APART = SHARE * WARP;

// Twice the sum of four ReLUs.
__device__ __forceinline__ float relu_sum(float a, float b, float c, float d) {
    return ((a + fabsf(a)) + (b + fabsf(b))) + ((c + fabsf(c)) + (d + fabsf(d)));
}
// Windows of two neighbouring channels: rows g and g + 8 of two tiles.
__device__ __forceinline__ float2 pool(const float (&a)[4], const float (&b)[4], float scale) {
    return {scale * relu_sum(a[0], a[2], b[0], b[2]), scale * relu_sum(a[1], a[3], b[1], b[3])};
}

__device__ __forceinline__ uint2 low2(uint4 v) { return {v.x, v.y}; }
__device__ __forceinline__ uint2 high2(uint4 v) { return {v.z, v.w}; }

// conv1: D[window g at dy 0, 1][8 channels at dx 0, 1, 4 times]; K: 5 rows x 3 pixel pairs and one
// pair without weight. A tile is 2 x 4 windows of one column parity, so that their cells lie in
// different banks; an image has 2 parities x 3 x 3. filters1: [part][channel/8][lane][dx][8 K].
constexpr int TILES1 = 3 * (3 - SHARE);                    // a third of a warp's, from above
using Pixels1 = uint4[PIXEL_PARTS][2];
using Filter1 = uint4[4][2];
struct Tile1 {
    float d[4][2][4];

    template <bool START>
    __device__ __forceinline__ void add(const uint4 (&a)[2], const Filter1& b) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (START)
                ptx::mma_start(d[i / 2][i % 2], a[0], low2(b[i / 2][i % 2]));
            else
                ptx::mma_add(d[i / 2][i % 2], a[0], low2(b[i / 2][i % 2]));
        }
#pragma unroll
        for (int i = 0; i < 8; ++i)
            ptx::mma_add(d[i / 2][i % 2], a[1], high2(b[i / 2][i % 2]));
    }
    __device__ __forceinline__ void multiply(const Pixels1& a, const Filter1 (&b)[PARTS]) {
        add<true>(a[0], b[PARTS - 1]);
        if (PIXEL_PARTS == 2) add<false>(a[PIXEL_PARTS - 1], b[0]);
        if (PARTS == 2) add<false>(a[0], b[0]);
    }
    __device__ __forceinline__ void store(u32 cell, float scale) const {
#pragma unroll
        for (int plane = 0; plane < 4; ++plane) {
            const float2 mean = pool(d[plane][0], d[plane][1], scale);
            const u32 high = ptx::half2(mean.x, mean.y);
            ptx::store_shared(cell + plane * PLANE, high);
            if (PARTS == 2)
                ptx::store_shared(cell + plane * PLANE + MAP_BYTES,
                                  ptx::rest2(mean.x, mean.y, high));
        }
    }
};

__device__ __forceinline__ void load1(Pixels1& a, const u32 (&pair)[4], int down, int tile) {
    const u32 from =
        (down + tile / TILES1) * (8 * ROW_BYTES) + tile % TILES1 / 3 * 4 + tile % 3 * 16;
#pragma unroll
    for (int p = 0; p < PIXEL_PARTS; ++p)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const u32 low = pair[2 * k] + from + p * PIXEL_BYTES;
            const u32 high = pair[2 * k + 1] + from + p * PIXEL_BYTES;
            a[p][k] = {ptx::load_shared(low), ptx::load_shared(low + ROW_BYTES),
                       ptx::load_shared(high), ptx::load_shared(high + ROW_BYTES)};
        }
}

// A tile is multiplied, and the pixels of the one after it loaded, before the last is pooled.
__device__ __forceinline__ void convolve1(u32 pixels, u32 cells, const uint4* filters1,
                                          float scale, int parity, int lane) {
    const int g = lane / 4, quad = lane % 4, x = 2 * (g % 2), y = g / 2;
    u32 pair[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
        const int k = min(quad + 4 * m, 14);
        pair[m] = pixels + (2 * y + k / 3) * ROW_BYTES + (x + k % 3 + parity) * 4;
    }
    const u32 to = cells + parity * PARITY + y * HALF_ROW + g % 2 * CELL + quad * 4;
    Filter1 filter[PARTS];
#pragma unroll
    for (int i = 0; i < PARTS * 8; ++i)
        filter[i / 8][i / 2 % 4][i % 2] =
            ptx::load_here(filters1 + (i / 2 * WARP + lane) * 2 + i % 2);

    Pixels1 a;
    Tile1 now, then;
    load1(a, pair, 0, 0);
    now.multiply(a, filter);
    load1(a, pair, 0, 1);
#pragma unroll 1
    for (int down = 0; down < 3; ++down) {
#pragma unroll
        for (int tile = 0; tile < TILES1; ++tile) {
            if (tile + 1 < TILES1 || down < 2) then.multiply(a, filter);
            if (tile + 2 < TILES1 || down < 2) load1(a, pair, down, tile + 2);
            const u32 place = down * (4 * HALF_ROW) + tile % 3 * (2 * CELL) + tile / 3 * PARITY;
            now.store(to + place, scale);
            now = then;
        }
    }
}

constexpr int TILES = 4 / SHARE;                           // of 16 positions: windows x dy, dx
using Sums = float[TILES][CHANNELS / 8][4];

// Where the tiles of dx 0 and dx 1 begin under a tap: they change places with every column.
struct Window {
    u32 at[2];

    __device__ __forceinline__ void right() {
        const u32 after = at[0] + CELL;
        at[0] = at[1];
        at[1] = after;
    }
};

// Rows of 16 positions: 4 x 2 windows at dy 0, then at dy 1; tile 2w + dx: windows two rows down.
__device__ __forceinline__ void load_rows(uint4 (&a)[TILES], const Window& maps, u32 offset) {
#pragma unroll
    for (int t = 0; t < TILES; ++t)
        a[t] = ptx::load_matrices(maps.at[t % 2] + offset + t / 2 * (4 * HALF_ROW));
}

// What a turn of products needs, loaded while the turn before it is multiplied; a tap has TURNS.
#if PARTS == 1
constexpr int TURNS = 2;                                   // K steps of 16 channels
struct Operands {
    uint4 a[TILES], b[CHANNELS / 16];

    __device__ __forceinline__ void load(const Window& maps, u32 filters, int turn) {
        load_rows(a, maps, turn * (2 * PLANE));
#pragma unroll
        for (int n = 0; n < CHANNELS / 16; ++n)
            b[n] = ptx::load_shared4(filters + (turn * (CHANNELS / 16) + n) * PAIR_BYTES);
    }
    __device__ __forceinline__ void multiply(Sums& sums, int) const {
#pragma unroll
        for (int n = 0; n < CHANNELS / 16; ++n)
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
                ptx::mma_add(sums[t][2 * n], a[t], low2(b[n]));
                ptx::mma_add(sums[t][2 * n + 1], a[t], high2(b[n]));
            }
    }
};
#else
constexpr int TURNS = CHANNELS / 16;                       // outputs, 16 a turn, of both K steps
struct Operands {
    uint4 high[2][TILES], low[2][TILES], b[2], b_low[2];

    __device__ __forceinline__ void load(const Window& maps, u32 filters, int turn) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            if (turn == 0) {
                load_rows(high[k], maps, k * (2 * PLANE));
                load_rows(low[k], maps, k * (2 * PLANE) + MAP_BYTES);
            }
            const u32 from = filters + (4 * k + turn % 2) * PAIR_BYTES;
            b_low[k] = ptx::load_shared4(from + 2 * PAIR_BYTES);
            b[k] = ptx::load_shared4(from);
        }
    }
    // The low products first: while sums are small the tensor cores lose little.
    __device__ __forceinline__ void multiply(Sums& sums, int turn) const {
        float d[TILES][2][4];
#pragma unroll
        for (int product = 0; product < 6; ++product) {
            const int k = product % 2;
            const uint4 both = product < 2 ? b_low[k] : b[k];
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
                const uint4 rows = product / 2 == 1 ? low[k][t] : high[k][t];
                if (product == 0) {
                    ptx::mma_start(d[t][0], rows, low2(both));
                    ptx::mma_start(d[t][1], rows, high2(both));
                } else {
                    ptx::mma_add(d[t][0], rows, low2(both));
                    ptx::mma_add(d[t][1], rows, high2(both));
                }
            }
        }
#pragma unroll
        for (int i = 0; i < TILES * 8; ++i)
            sums[i / 8][2 * turn + i / 4 % 2][i % 4] += d[i / 8][i / 4 % 2][i % 4];
    }
};
#endif

// The filters, again and again: a tap's stages and the one after are there to be read while the
// rest of the next tap is on its way.
struct Ring {
    const unsigned char* filters;
    int from = 0;                                          // the next to fetch, in bytes
    u32 stage[PARTS + 1], free[PARTS];

    __device__ __forceinline__ Ring(u32 base, const unsigned char* filters) : filters(filters) {
#pragma unroll
        for (int i = 0; i <= PARTS; ++i) fetch(stage[i] = base + i * STAGE_BYTES);
#pragma unroll
        for (int i = 0; i < PARTS; ++i) free[i] = base + (PARTS + 1 + i) * STAGE_BYTES;
        ptx::copy_commit();
    }
    __device__ __forceinline__ void fetch(u32 to) {
#pragma unroll
        for (int b = 0; b < STAGE_BYTES; b += THREADS * CELL) {
            const int at = b + threadIdx.x * CELL;
            if (b + THREADS * CELL <= STAGE_BYTES || at < STAGE_BYTES)
                ptx::copy16(to + at, filters + from + at);
        }
        from = from + STAGE_BYTES == FILTERS_BYTES ? 0 : from + STAGE_BYTES;
    }
    // Every warp has what was fetched a tap ago, and is through with the tap before.
    __device__ __forceinline__ void wait() {
        ptx::copy_wait<0>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PARTS; ++i) fetch(free[i]);
        ptx::copy_commit();
    }
    __device__ __forceinline__ void advance(u32 base) {
        const u32 last = base + (STAGES - 1) * STAGE_BYTES;
#pragma unroll
        for (int i = 0; i < PARTS; ++i) free[i] = stage[i];
        stage[0] = stage[PARTS];
#pragma unroll
        for (int i = 1; i <= PARTS; ++i)
            stage[i] = stage[i - 1] == last ? base : stage[i - 1] + STAGE_BYTES;
    }
};

// features: [n][part][two rows of windows][channel / 32][lane][8], fp16.
__device__ __forceinline__ void store_features(const Sums& sums, uint4* features, int rows,
                                               float scale, int lane) {
#pragma unroll
    for (int w = 0; w < TILES / 2; ++w)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            u32 high[4], low[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int n = 4 * half + i;
                const float2 mean = pool(sums[2 * w][n], sums[2 * w + 1][n], scale);
                high[i] = ptx::half2(mean.x, mean.y);
                low[i] = ptx::rest2(mean.x, mean.y, high[i]);
            }
            uint4* to = features + ((rows + w) * 2 + half) * WARP + lane;
            to[0] = {high[0], high[1], high[2], high[3]};
            if (PARTS == 2) to[FEATURES / 8] = {low[0], low[1], low[2], low[3]};
        }
}

// filters2: [tap][half of the outputs, with two parts][K step][part][output/16][lane][two columns
// of B], fp16.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    mma_features(const Pixel* __restrict__ images, const uint4* __restrict__ filters1,
                 const unsigned char* __restrict__ filters2, uint4* __restrict__ features, int n,
                 float scale1, float scale2) {
    extern __shared__ __align__(128) unsigned char memory[];
    const u32 base = ptx::shared(memory);
    const int warp = __shfl_sync(~0u, int(threadIdx.x) / WARP, 0), lane = threadIdx.x % WARP;
    const int slot = warp / SHARE, share = warp % SHARE, part = share * WARP + lane;
    const u32 maps = base + MAPS_AT + slot * (PARTS * MAP_BYTES);
    const u32 pixels = base + PIXELS_AT + slot * (PIXEL_PARTS * PIXEL_BYTES);
    // This lane's row of ldmatrix: window lane % 8 at dy, of 8 channels of 16.
    const u32 rows = maps + lane / 16 * PLANE + lane % 4 * CELL +
                     (lane / 4 % 2 * 2 + lane / 8 % 2 + 4 * share) * HALF_ROW;

    Ring ring(base, filters2);
    const int stride = int(gridDim.x) * IMAGES;
    int first = int(blockIdx.x) * IMAGES;
    const Pixel* image = images + size_t(min(first + slot, n - 1)) * PIXELS;
    for (int at = part; at < PATCHES; at += PATCHES_APART)
        stage(pixels + at * CELL, load(image + at * 8));
    ptx::copy_wait<0>();
#pragma unroll 1
    for (; first < n; first += stride) {
        __syncthreads();
        convolve1(pixels, maps, filters1, scale1, share, lane);
        if (SHARE == 1)
            __syncwarp();
        else
            ptx::sync(1 + slot, SHARE * WARP);

        image = images + size_t(min(first + slot + stride, n - 1)) * PIXELS;
        Sums sums;
#pragma unroll
        for (int i = 0; i < TILES * CHANNELS / 2; ++i)
            sums[i / 4 / (CHANNELS / 8)][i / 4 % (CHANNELS / 8)][i % 4] = 0.0f;
        Window window{{rows, rows + PARITY}};
        Operands now, then;
        now.load(window, ring.stage[0] + lane * CELL, 0);
#pragma unroll 1
        for (int r = 0; r < FILTER; ++r) {
            const int at = part + r * PATCHES_APART;       // of the next image
            Patch patch{};
            if (at < PATCHES) patch = load(image + at * 8);
#pragma unroll TAPS_AT_ONCE
            for (int s = 0; s < FILTER; ++s) {
                ring.wait();
#pragma unroll
                for (int turn = 0; turn < TURNS; ++turn) {
                    const u32 row = rows + min(r + 1, FILTER - 1) * HALF_ROW;
                    if (turn + 1 < TURNS)
                        then = now;
                    else if (s + 1 < FILTER)
                        window.right();
                    else
                        window = {{row, row + PARITY}};
                    then.load(window, ring.stage[(turn + 1) * PARTS / TURNS] + lane * CELL,
                              (turn + 1) % TURNS);
                    now.multiply(sums, turn);
                    now = then;
                }
                ring.advance(base);
            }
            if (at < PATCHES) stage(pixels + at * CELL, patch);
        }
        if (first + slot < n)
            store_features(sums, features + size_t(first + slot) * (PARTS * FEATURES / 8), share,
                           scale2, lane);
    }
    ptx::copy_wait<0>();
}
