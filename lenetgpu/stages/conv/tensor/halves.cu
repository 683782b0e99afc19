// Images to fp16 high and low, scaled by powers of two: each image by its largest input, each
// channel by what its filters make of it (`lifts`), so that nothing overflows and what counts is kept.
// tensor_largest: SHARES blocks an image, each finds the largest exponent of its share.
// tensor_halves: a thread a cell of 8 channels (packed.cuh); any C, zeros behind the last channel. A
// warp takes ALONG pixels of ACROSS neighbouring cells: at NCHW its lanes read ALONG floats of a row, at
// NHWC ACROSS cells of a pixel, and write one or the other, so that whole sectors are read and written.
#include "stages/conv/tensor/ends.cuh"

constexpr int WARPS = THREADS / 32;

static_assert(THREADS % 32 == 0 && WARPS <= 32, "a block is whole warps, joined by one");
static_assert(SHARES > 0 && (SHARES & (SHARES - 1)) == 0, "lanes of a warp take an image's shares in turn");

__device__ __forceinline__ u32 raised(int top) { return u32(top - NO_TOP); }

#ifdef ENTRY_tensor_largest
constexpr u32 INPUTS = u32(H) * W * CH;       // fewer than 2^30
constexpr int ALONG = READS == NHWC ? CH : H * W;
constexpr int WIDE = ALONG % 4 == 0 ? 4 : 1;
constexpr int NEXT = READS == NHWC;           // from an input's channel to that of the next of WIDE

__device__ __forceinline__ int channel_of(u32 i) {
    return READS == NHWC ? i % CH : i / (u32(H) * W);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    tensor_largest(const Held* __restrict__ x, const int* __restrict__ lifts,
                   u32* __restrict__ found, u32* __restrict__ reached) {
    __shared__ u32 of_warp[WARPS];
    follow();
    const int image = blockIdx.x / SHARES, share = blockIdx.x % SHARES;
    const Held* from = x + size_t(image) * INPUTS;
    u32 most = 0;
    const auto count = [&](float v, int channel) {
        const int top = top_of(v);
        if (top != NO_TOP) most = max(most, raised(top + lifts[channel]));
    };
#pragma unroll 8
    for (u32 i = (share * THREADS + threadIdx.x) * WIDE; i < INPUTS; i += SHARES * THREADS * WIDE) {
        const int channel = channel_of(i);
        if (WIDE == 4) {
            const float4 four = four_at(from + i);
            count(four.x, channel), count(four.y, channel + NEXT);
            count(four.z, channel + 2 * NEXT), count(four.w, channel + 3 * NEXT);
        } else {
            count(Value::load(from[i]), channel);
        }
    }
    most = __reduce_max_sync(~0u, most);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x < 32) {
        most = __reduce_max_sync(~0u, threadIdx.x < WARPS ? of_warp[threadIdx.x] : 0);
        if (threadIdx.x == 0) {
            found[blockIdx.x] = most;
            if (share == 0) reached[image] = 0;
        }
    }
}
#endif

#ifdef ENTRY_tensor_halves
constexpr int ALONG = 32 / ACROSS;
constexpr int COLUMNS = H * WP;               // of an image
constexpr int RUNS = (COLUMNS + ALONG - 1) / ALONG;
constexpr bool QUADS = READS == NHWC && !FOLD && CH % 4 == 0;

static_assert(FILLED % ACROSS == 0, "a warp's cells are there");
static_assert(BLOCKS * WARPS >= RUNS * (FILLED / ACROSS), "every cell has a thread");

__device__ __forceinline__ float input_of(const Held* __restrict__ x, size_t image, int y, int col,
                                          int channel) {
    if (!FOLD) return channel < CH ? Value::load(x[cell<READS, H, W, CH>(image, y, col, channel)]) : 0.0f;
    if (channel >= S * CH) return 0.0f;
    return value_at(x, image, y, col * STRIDE - PAD + channel / CH, channel % CH);
}
__device__ __forceinline__ void inputs_of(float (&v)[CELL], const Held* __restrict__ x, size_t image,
                                          int y, int col, int first) {
#pragma unroll
    for (int c = 0; c < CELL; c += QUADS ? 4 : 1) {
        if constexpr (QUADS) {
            float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
            if (first + c < CH) four = four_at(x + cell<READS, H, W, CH>(image, y, col, first + c));
            v[c] = four.x, v[c + 1] = four.y, v[c + 2] = four.z, v[c + 3] = four.w;
        } else {
            v[c] = input_of(x, image, y, col, first + c);
        }
    }
}

// The largest of a lane's part of an image's shares.
__device__ __forceinline__ u32 largest_of(const u32* __restrict__ found, int lane) {
    u32 most = found[lane % SHARES];
#pragma unroll
    for (int i = 32; i < SHARES; i += 32) most = max(most, found[i + lane]);
    return most;
}

// `plane`: positions from one plane to the next. Images from the last to the first: what
// tensor_largest read last may still be in the cache.
extern "C" __global__ void __launch_bounds__(THREADS)
    tensor_halves(const Held* __restrict__ x, const int* __restrict__ lifts,
                  const u32* __restrict__ found, int* __restrict__ tops, uint4* __restrict__ packed,
                  int plane) {
    follow();
    const int image = (gridDim.x - 1 - blockIdx.x) / BLOCKS, part = blockIdx.x % BLOCKS;
    const int lane = threadIdx.x % 32, warp = part * WARPS + threadIdx.x / 32;
    const int pixel = warp % RUNS * ALONG + lane / ACROSS;
    const int group = warp / RUNS * ACROSS + lane % ACROSS, first = group * CELL;
    const int y = pixel / WP, col = pixel % WP;
    const int top_row = PLANES ? y + PAD : y, left = PLANES ? col + PAD_X : col;
    const int phase_y = PLANES ? top_row % STRIDE : 0, row = PLANES ? top_row / STRIDE : y;
    const int phase_x = PLANES ? left % STEP_X : 0, column = PLANES ? left / STEP_X : col;
    const bool read = phase_y < PHASES_Y && phase_x < PHASES_X && row < SLOT / PITCH && column < PITCH;
    const bool own = pixel < COLUMNS && group < FILLED && read;
    float v[CELL] = {};
    if (own) inputs_of(v, x, image, y, col, first);
    const u32 most = __reduce_max_sync(~0u, largest_of(found + image * SHARES, lane));
    const int top = most ? int(most) + NO_TOP : NO_TOP;
    if (part == 0 && threadIdx.x == 0) tops[image] = top;
    if (!own) return;
    const int shift = HALF_TOP - (most ? top : 0);
#pragma unroll
    for (int c = 0; c < CELL; ++c) {
        const int channel = first + c, of = FOLD ? channel % CH : min(channel, CH - 1);
        v[c] = times_power(v[c], shift + lifts[of]);
    }
    u32 high[CELL / 2], low[CELL / 2];
#pragma unroll
    for (int c = 0; c < CELL / 2; ++c) {
        high[c] = ptx::half2(v[2 * c], v[2 * c + 1]);
        low[c] = ptx::rest2(v[2 * c], v[2 * c + 1], high[c]);
    }
    const size_t position = size_t(image) * SLOT + row * PITCH + column, apart = PLANES ? plane : 1;
    const int cell = (phase_y * PHASES_X + phase_x) * GROUPS + group;
    uint4* to = packed + (PLANES ? position : position * (PARTS * GROUPS)) + cell * apart;
    *to = {high[0], high[1], high[2], high[3]};
    if (PARTS == 2) to[PHASES * GROUPS * apart] = {low[0], low[1], low[2], low[3]};
}
#endif
