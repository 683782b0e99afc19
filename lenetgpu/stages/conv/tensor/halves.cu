// Images to fp16 high and low, scaled by powers of two: each image by its largest input, each
// channel by what its filters make of it (`lifts`), so that nothing overflows and what counts is kept.
// One launch: SHARES blocks look for an image's largest exponent, BLOCKS split it behind them while its
// inputs are still in the L2 cache. A block's work is its ticket's: LEAD images are looked at, then one is
// split and one more looked at, in turn; who waits has a later ticket than those it waits for.
// Splitting: a thread a cell of 8 channels (packed.cuh); any C, zeros behind the last channel. A
// warp takes ALONG pixels of ACROSS neighbouring cells: at NCHW its lanes read ALONG floats of a row, at
// NHWC ACROSS cells of a pixel, and write one or the other, so that whole sectors are read and written.
#include "stages/conv/tensor/packed.cuh"

constexpr int WARPS = THREADS / 32;
constexpr u32 BOTH = SHARES + BLOCKS;
constexpr int LEAD = (1024 + BOTH - 1) / BOTH;  // as many blocks as run at a time, or somewhat fewer

static_assert(THREADS % 32 == 0 && WARPS <= 32, "a block is whole warps, joined by one");
static_assert(SHARES <= 32 && 32 % SHARES == 0, "lanes of a warp hold an image's shares");

__device__ __forceinline__ u32 raised(int top) { return u32(top - NO_TOP); }

struct Work {
    int image, part;
    bool looks;

    __device__ __forceinline__ Work(u32 ticket, int images) {
        const u32 lead = min(LEAD, images), looked = images - lead;
        const u32 at = ticket - lead * SHARES;
        looks = ticket < lead * SHARES;
        if (looks) {
            image = ticket / SHARES, part = ticket % SHARES;
        } else if (at < looked * BOTH) {
            looks = at % BOTH >= BLOCKS;
            image = at / BOTH + (looks ? lead : 0), part = at % BOTH - (looks ? BLOCKS : 0);
        } else {
            image = looked + (at - looked * BOTH) / BLOCKS, part = (at - looked * BOTH) % BLOCKS;
        }
    }
};

// Tickets given out, images split, and of every image how many blocks are done with it; all zeros
// before a launch and after it.
struct Turns {
    u32* at;

    __device__ __forceinline__ u32 ticket() const { return atomicAdd(at, 1u); }
    __device__ __forceinline__ void looked_at(int image) const {
        __threadfence();
        atomicAdd(at + 2 + image, 1u);
    }
    __device__ __forceinline__ void wait(int image, int images) const {
        const volatile u32* looked = at + 2 + image;
        while (*looked < SHARES) {}
        __threadfence();
        if (atomicAdd(at + 2 + image, 1u) + 1 < BOTH) return;
        at[2 + image] = 0;
        if (atomicAdd(at + 1, 1u) + 1 == images) at[0] = at[1] = 0;
    }
};

constexpr u32 INPUTS = u32(H) * W * CH;       // fewer than 2^30
constexpr int WIDE = (READS == NHWC ? CH : H * W) % 4 == 0 ? 4 : 1;
constexpr int NEXT = READS == NHWC;           // from an input's channel to that of the next of WIDE

__device__ __forceinline__ int channel_of(u32 i) {
    return READS == NHWC ? i % CH : i / (u32(H) * W);
}

// The largest exponent of a share; every thread comes here, the first of each warp knows.
__device__ __forceinline__ u32 largest_of(const float* __restrict__ from, int share,
                                          const int* __restrict__ lifts, u32 (&of_warp)[WARPS]) {
    u32 most = 0;
    const auto count = [&](float v, int channel) {
        const int top = top_of(v);
        if (top != NO_TOP) most = max(most, raised(top + lifts[channel]));
    };
#pragma unroll 4
    for (u32 i = (share * THREADS + threadIdx.x) * WIDE; i < INPUTS; i += SHARES * THREADS * WIDE) {
        const int channel = channel_of(i);
        if (WIDE == 4) {
            const float4 four = *reinterpret_cast<const float4*>(from + i);
            count(four.x, channel), count(four.y, channel + NEXT);
            count(four.z, channel + 2 * NEXT), count(four.w, channel + 3 * NEXT);
        } else {
            count(from[i], channel);
        }
    }
    most = __reduce_max_sync(~0u, most);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;
    __syncthreads();
    return __reduce_max_sync(~0u, threadIdx.x % 32 < WARPS ? of_warp[threadIdx.x % 32] : 0);
}

constexpr int ALONG = 32 / ACROSS;
constexpr int COLUMNS = H * WP;               // of an image
constexpr int RUNS = (COLUMNS + ALONG - 1) / ALONG;
constexpr bool QUADS = READS == NHWC && !FOLD && CH % 4 == 0;

static_assert(FILLED % ACROSS == 0, "a warp's cells are there");
static_assert(BLOCKS * WARPS >= RUNS * (FILLED / ACROSS), "every cell has a thread");

__device__ __forceinline__ float input_of(const float* __restrict__ x, size_t image, int y, int col,
                                          int channel) {
    if (!FOLD) return channel < CH ? x[cell<READS, H, W, CH>(image, y, col, channel)] : 0.0f;
    if (channel >= S * CH) return 0.0f;
    return input_at(x, image, y, col * STRIDE - PAD + channel / CH, channel % CH);
}
__device__ __forceinline__ void inputs_of(float (&v)[CELL], const float* __restrict__ x, size_t image,
                                          int y, int col, int first) {
#pragma unroll
    for (int c = 0; c < CELL; c += QUADS ? 4 : 1) {
        if constexpr (QUADS) {
            float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
            if (first + c < CH)
                four = *reinterpret_cast<const float4*>(
                    x + cell<READS, H, W, CH>(image, y, col, first + c));
            v[c] = four.x, v[c + 1] = four.y, v[c + 2] = four.z, v[c + 3] = four.w;
        } else {
            v[c] = input_of(x, image, y, col, first + c);
        }
    }
}

// `plane`: positions from one plane to the next.
extern "C" __global__ void __launch_bounds__(THREADS)
    tensor_halves(const float* __restrict__ x, const int* __restrict__ lifts, u32* found,
                  u32* __restrict__ reached, int* __restrict__ tops, uint4* __restrict__ packed,
                  u32* tickets, int images, int plane) {
    __shared__ u32 of_warp[WARPS], ticket;
    const Turns turns = {tickets};
    follow();
    if (threadIdx.x == 0) ticket = turns.ticket();
    __syncthreads();
    const Work work(ticket, images);
    const int image = work.image, part = work.part;
    if (work.looks) {
        const u32 most = largest_of(x + size_t(image) * INPUTS, part, lifts, of_warp);
        if (threadIdx.x != 0) return;
        found[image * SHARES + part] = most;
        if (part == 0) reached[image] = 0;
        turns.looked_at(image);
        return;
    }
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
    if (threadIdx.x == 0) turns.wait(image, images);
    __syncthreads();
    const volatile u32* shares = found + image * SHARES;
    const u32 most = __reduce_max_sync(~0u, shares[threadIdx.x % SHARES]);
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
