// Images to pool2's features in one kernel on mma.sync, conv2 by Winograd F(4,5) along x: fp16
// operands, fp32 sums (sm_80). A block's eight warps take eight images. Each does conv1 of one and
// leaves its transformed maps in shared memory; then each computes 8 of conv2's outputs of all
// eight: GEMM rows (M) are images and tiles, so that a row of the maps, read once, serves five
// rows of outputs, and a warp's filters are its own: they come from L2 to its registers, without a
// pipeline. Products are never cleared between transform points: what the tensor cores have after each point
// counts with the difference of two neighbouring points' factors. Any n >= 1.
#include "stages/fused/mma_winograd/conv1.cuh"

constexpr int WARPS = 8, IMAGES = WARPS;
constexpr int FILTER = 5, ROWS = SIDE - FILTER + 1;        // of filters; of outputs
constexpr int ROW_VECS = WARPS * WARP, POINT_VECS = FILTER * ROW_VECS;
constexpr int FEATURE_PAIRS = 512;

static_assert(IMAGES * IMAGE_BYTES == SHARED_BYTES, "the launcher's layout differs");

using Outputs = float[ROWS][4];                            // [image, tile][2 channels] a row
using Filter = uint4[FILTER];                              // a point's, of 8 outputs
using Operand = uint4[2];                                  // 8 images, 2 tiles, 32 channels

__device__ __forceinline__ void load_row(Operand& a, u32 maps, int y) {
    const u32 at = maps + y / BAND * BAND_BYTES + y % BAND * LINE_BYTES;
    a[0] = ptx::load_matrices(at);
    a[1] = ptx::load_matrices(at + 2 * VEC_BYTES);
}

// Lines of the maps in an order in which each turn has a product for five lines of outputs, so that
// no chain of products is alone: 4 to 7, then 0 and 8, 1 and 9, 2 and 10, 3 and 11.
constexpr int TURNS = ROWS, ALONE = TURNS / 2;             // turns of one line
struct Lines {
    Operand first, second;

    __device__ __forceinline__ void load(u32 maps, int turn) {
        load_row(first, maps, turn < ALONE ? turn + ALONE : turn - ALONE);
        if (turn >= ALONE) load_row(second, maps, turn - ALONE + ROWS);
    }
};

// Products at the point whose maps begin at `maps`; `now` are the lines of its first turn, then those
// of the next point's. The next point's filters come to `other`. `finish(y)` may take a row of
// outputs.
template <bool START, typename Finish>
__device__ __forceinline__ void multiply(Outputs& d, const Filter& filter, Filter& other, Lines& now,
                                         u32 maps, const uint4* next, Finish finish) {
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        const int line = turn < ALONE ? turn + ALONE : turn - ALONE;
        Lines then;
        then.load(turn + 1 < TURNS ? maps : maps + POINT_BYTES, (turn + 1) % TURNS);
        if (turn < FILTER) other[turn] = ptx::load_here(next + turn * ROW_VECS);
#pragma unroll
        for (int i = 0; i < 2 * FILTER; ++i) {
            const int step = i / FILTER, r = i % FILTER;
            const bool second = r > line;                  // no such row: that of 8 lines down
            const int y = second ? line + ROWS - r : line - r;
            const uint4 a = second ? now.second[step] : now.first[step];
            const uint2 b = step == 0 ? ptx::low2(filter[r]) : ptx::high2(filter[r]);
            if (START && step == 0 && (turn == 0 || (turn < ALONE && r == 0)))
                ptx::mma_start(d[y], a, b);
            else
                ptx::mma_add(d[y], a, b);
        }
        if (turn > ALONE) finish(turn - 1);
        now = then;
    }
#pragma unroll
    for (int y = 0; y < ALONE; ++y) finish(y);
    finish(ROWS - 1);
}

// sums[i] = sum of point^i products: of the products' running sum, which is sums[0], each state
// counts with what its point's factor is above the next one's. Infinity's are output 3's alone.
__device__ __forceinline__ void convolve2(Outputs (&sums)[OUTPUTS], Filter& filter,
                                          const uint4* filters, int own, u32 maps) {
    Lines now;
    now.load(maps, 0);
    Filter other;
    int at = own + POINT_VECS;
    multiply<true>(sums[3], filter, other, now, maps, filters + at, [](int) {});
    at += POINT_VECS, maps += POINT_BYTES;
    multiply<true>(sums[0], other, filter, now, maps, filters + at, [&](int y) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sums[1][y][i] = sums[2][y][i] = -sums[0][y][i];
            sums[3][y][i] -= sums[0][y][i];
        }
    });
#pragma unroll 1
    for (int pair = 0; pair < 3; ++pair) {
        const float a = pair == 0 ? 1.0f : pair == 1 ? 2.0f : 0.5f;
        const float b = pair == 0 ? 2.0f : pair == 1 ? 0.5f : 0.0f;
        const float plus1 = 2 * a, plus3 = 2 * a * a * a;
        const float minus1 = -a - b, minus2 = a * a - b * b, minus3 = -a * a * a - b * b * b;
        at += POINT_VECS, maps += POINT_BYTES;
        multiply<false>(sums[0], filter, other, now, maps, filters + at, [&](int y) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sums[1][y][i] = fmaf(plus1, sums[0][y][i], sums[1][y][i]);
                sums[3][y][i] = fmaf(plus3, sums[0][y][i], sums[3][y][i]);
            }
        });
        at = pair == 2 ? own : at + POINT_VECS, maps += POINT_BYTES;
        multiply<false>(sums[0], other, filter, now, maps, filters + at, [&](int y) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sums[1][y][i] = fmaf(minus1, sums[0][y][i], sums[1][y][i]);
                sums[2][y][i] = fmaf(minus2, sums[0][y][i], sums[2][y][i]);
                sums[3][y][i] = fmaf(minus3, sums[0][y][i], sums[3][y][i]);
            }
        });
    }
}

__device__ __forceinline__ float mean(float a, float b, float c, float d) {
    return 0.125f * (((a + fabsf(a)) + (b + fabsf(b))) + ((c + fabsf(c)) + (d + fabsf(d))));
}
// features: [two rows of windows][channel / 32][window][4][4] pairs, as mma/classifier.cu reads
// them; a warp has the pairs of one of its vectors.
__device__ __forceinline__ void store_features(const Outputs (&sums)[OUTPUTS], u32* image, int warp,
                                               int quad) {
    u32* const to = image + warp / 4 * (WARP * 4) + warp % 4 * 4 + quad;
#pragma unroll
    for (int window = 0; window < 16; ++window) {
        const int y = window / 4 * 2, tile = window % 4 / 2 * 2, x = window % 2 * 2;
        float pair[2];
#pragma unroll
        for (int c = 0; c < 2; ++c)
            pair[c] = mean(sums[x][y][tile + c], sums[x][y + 1][tile + c],
                           sums[x + 1][y][tile + c], sums[x + 1][y + 1][tile + c]);
        to[window / 8 * (2 * WARP * 4) + window % 8 * 16] = ptx::half2(pair[0], pair[1]);
    }
}

// The thread's number, known anew: what hangs on it is not kept in registers from batch to batch.
__device__ __forceinline__ int here(int thread) {
    asm volatile("" : "+r"(thread));
    return thread;
}

// filters1: [plane][lane][dx][K step][4]; filters2: [infinity, 0, 1, -1, 2, -2, 1/2, -1/2][row]
// [warp][lane][K step][4], fp16.
extern "C" __global__ void __launch_bounds__(WARPS* WARP, 1)
    mma_winograd_features(const Pixel* __restrict__ images, const uint4* __restrict__ filters1,
                          const uint4* __restrict__ filters2, u32* __restrict__ features, int n) {
    extern __shared__ __align__(128) unsigned char memory[];
    const u32 base = ptx::shared(memory);
    const int stride = int(gridDim.x) * IMAGES;
    int first = int(blockIdx.x) * IMAGES;
    PixelVectors vectors;
    const auto fetch = [&](int thread, int from) {
        const int image = min(from + thread / WARP, n - 1);
        vectors.fetch(images + size_t(image) * PIXELS, thread % WARP);
    };
    fetch(threadIdx.x, first);
    Filter filter;
#pragma unroll
    for (int r = 0; r < FILTER; ++r)
        filter[r] = ptx::load_here(filters2 + threadIdx.x + r * ROW_VECS);
#pragma unroll 1
    for (; first < n; first += stride) {
        const int thread = here(threadIdx.x), lane = thread % WARP;
        const u32 own = base + thread / WARP * IMAGE_BYTES;
        Filter1 filter1;
#pragma unroll
        for (int i = 0; i < 2 * PLANES; ++i)
            filter1[i / 2][i % 2] = ptx::load_here(filters1 + (i / 2 * WARP + lane) * 2 + i % 2);
        vectors.stage(own + PIXELS_AT, lane);
        __syncwarp();
        convolve1(own, filter1, lane);
        __syncthreads();

        // This lane's row of ldmatrix: an image's tile, 8 channels of 16.
        const u32 maps =
            base + lane % 8 * IMAGE_BYTES + lane / 8 % 2 * TILE_BYTES + lane / 16 * VEC_BYTES;
        Outputs sums[OUTPUTS];
        convolve2(sums, filter, filters2, thread, maps);
        const int again = here(threadIdx.x), image = first + again % WARP / 4;
        fetch(again, first + stride);
        if (image < n)
            store_features(sums, features + size_t(image) * FEATURE_PAIRS, again / WARP, again % 4);
        __syncthreads();
    }
}
