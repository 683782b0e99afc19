// Images to pool2's features in one kernel, both convolutions on mma.sync with fp32 sums (sm_80).
// SHARE warps carry an image from pixels to features. conv1 (conv1.cuh) leaves pooled vectors of 8
// channels; they are conv2's rows, by ldmatrix where they lie: no im2col; a window's four sums
// meet in one thread. conv2's filters stream through a pipeline that the block shares (pipeline.cuh).
// PARTS 1: fp16 operands. PARTS 2: fp16 high + low, products high*high + high*low + low*high, a filter
// element's sums moved to fp32 registers, since tensor cores truncate (Ootomo and Yokota, arXiv
// 2203.03341). Any n >= 1.
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/barrier.cuh"
#include "gpu/ptx/math.cuh"
#include "gpu/ptx/mma.cuh"
#include "gpu/ptx/shared.cuh"
#include "stages/fused/mma/conv1.cuh"
#include "stages/fused/mma/pipeline.cuh"

constexpr int IMAGES = WARPS / SHARE;
constexpr int CHANNELS = 64;
constexpr int PAIR_BYTES = WARP * VEC_BYTES;               // 16 K x 16 outputs, as lanes read them
constexpr int FEATURES = 1024;
constexpr int ELEMENTS_AT_ONCE = PARTS == 1 ? FILTER : 1;

constexpr int MAPS_AT = STAGES * STAGE_BYTES;              // after the pipeline
constexpr int PIXELS_AT = MAPS_AT + IMAGES * PARTS * MAP_BYTES;

static_assert(PIXELS_AT + IMAGES * PIXEL_PARTS * PIXEL_BYTES == SHARED_BYTES,
              "the launcher's layout differs");
static_assert(SHARED_BYTES <= 99 * 1024, "a block's shared memory on sm_86, sm_89 and sm_120");

constexpr int TILES = 4 / SHARE;                           // of 16 positions: windows x dy, dx
using Sums = float[TILES][CHANNELS / 8][4];

// Where the tiles of dx 0 and dx 1 begin for a filter element: they change places with every column.
struct Window {
    u32 at[2];

    __device__ __forceinline__ void right() {
        const u32 after = at[0] + VEC_BYTES;
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

// What a turn of products needs, loaded while the turn before it is multiplied; a filter element has TURNS.
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
                ptx::mma_add(sums[t][2 * n], a[t], ptx::low2(b[n]));
                ptx::mma_add(sums[t][2 * n + 1], a[t], ptx::high2(b[n]));
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
                    ptx::mma_start(d[t][0], rows, ptx::low2(both));
                    ptx::mma_start(d[t][1], rows, ptx::high2(both));
                } else {
                    ptx::mma_add(d[t][0], rows, ptx::low2(both));
                    ptx::mma_add(d[t][1], rows, ptx::high2(both));
                }
            }
        }
#pragma unroll
        for (int i = 0; i < TILES * 8; ++i)
            sums[i / 8][2 * turn + i / 4 % 2][i % 4] += d[i / 8][i / 4 % 2][i % 4];
    }
};
#endif

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

// filters2: [filter element][half of the outputs, with two parts][K step][part][output/16][lane][two columns
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
    const u32 rows = maps + lane / 16 * PLANE + lane % 4 * VEC_BYTES +
                     (lane / 4 % 2 * 2 + lane / 8 % 2 + 4 * share) * HALF_ROW;

    Pipeline pipe(base, filters2);
    const int stride = int(gridDim.x) * IMAGES;
    int first = int(blockIdx.x) * IMAGES;
    const Pixel* image = images + size_t(min(first + slot, n - 1)) * PIXELS;
    for (int at = part; at < PIXEL_VECTORS; at += VECTORS_APART)
        stage(pixels + at * VEC_BYTES, load(image + at * 8));
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
        now.load(window, pipe.stage[0] + lane * VEC_BYTES, 0);
#pragma unroll 1
        for (int r = 0; r < FILTER; ++r) {
            const int at = part + r * VECTORS_APART;       // of the next image
            Pixels8 vector{};
            if (at < PIXEL_VECTORS) vector = load(image + at * 8);
#pragma unroll ELEMENTS_AT_ONCE
            for (int s = 0; s < FILTER; ++s) {
                pipe.wait();
#pragma unroll
                for (int turn = 0; turn < TURNS; ++turn) {
                    const u32 row = rows + min(r + 1, FILTER - 1) * HALF_ROW;
                    if (turn + 1 < TURNS)
                        then = now;
                    else if (s + 1 < FILTER)
                        window.right();
                    else
                        window = {{row, row + PARITY}};
                    then.load(window, pipe.stage[(turn + 1) * PARTS / TURNS] + lane * VEC_BYTES,
                              (turn + 1) % TURNS);
                    now.multiply(sums, turn);
                    now = then;
                }
                pipe.advance(base);
            }
            if (at < PIXEL_VECTORS) stage(pixels + at * VEC_BYTES, vector);
        }
        if (first + slot < n)
            store_features(sums, features + size_t(first + slot) * (PARTS * FEATURES / 8), share,
                           scale2, lane);
    }
    ptx::copy_wait<0>();
}
