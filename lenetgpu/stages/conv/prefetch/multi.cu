// Convolution of many channels by stride-fixed segments (Pascal paper, section 3.2).
// A round copies the next S = 4 x ELEMENTS bytes of each of a block's FILTERS filters (M') along
// (channel, row, column), and the lines of the map (W'y) that they read; while STAGES - 1 rounds
// are fetched, the one before is used. Elements of an unfinished filter row and lines that are still
// read stay in their ring buffers. A thread computes QUADS times four neighbours in x, in FM maps; the
// channels may be split over the threads of a block, whose sums are added in shared memory.
// x (n, C, H, W); w (filter block, split, filter element, filter); y (n, M, OH, OW).
#include "gpu/ptx/async.cuh"
#include "stages/conv/shape.cuh"

constexpr int FILTERS = GROUPS * FM;
constexpr int COLS = 4 * ROW_QUADS;                  // W'x: outputs of a line of the tile
constexpr int TILE = TILE_ROWS * COLS;
constexpr int TILE_QUADS = TILE / 4;
constexpr int STRIPS = (TILE_QUADS + QUADS - 1) / QUADS;
constexpr int WORKERS = STRIPS * GROUPS * SPLITS;

constexpr int SPLIT_CH = (CH + SPLITS - 1) / SPLITS;
constexpr int UNIT = UNIT_ROWS * S;                  // filter elements used without a test
constexpr int UNITS = (SPLIT_CH * R + UNIT_ROWS - 1) / UNIT_ROWS;
constexpr int ROUNDS = (UNITS * UNIT + ELEMENTS - 1) / ELEMENTS;

constexpr int VECTOR = W % 4 == 0 ? 4 : 1;
constexpr int SHIFT = VECTOR == 4 ? (4 - PAD % 4) % 4 : 0;  // of the tile in its first vector
constexpr int VECTORS = (SHIFT + (COLS - 1) * STRIDE + S + VECTOR - 1) / VECTOR;
constexpr int SPAN = SHIFT + 3 * STRIDE + S;         // pixels that a quad may read
constexpr int LINES = (TILE_ROWS - 1) * STRIDE + R;  // lines of a channel

// Filter elements that are held or under way, of the rounds and of a unit that is not yet whole.
constexpr int WINDOW = STAGES * ELEMENTS + (ELEMENTS % UNIT == 0 ? 0 : UNIT - 1);
constexpr int RING_ELEMENTS = (WINDOW + UNIT - 1) / UNIT * UNIT;
constexpr int UNIT_CH = UNIT_ROWS > R ? UNIT_ROWS / R : 1;
constexpr int RING_CH = ((WINDOW + R * S - 2) / (R * S) + UNIT_CH) / UNIT_CH * UNIT_CH;
constexpr int FILTER_RING = RING_ELEMENTS * FILTERS;
constexpr int RING = FILTER_RING + RING_CH * LINES * PITCH;

constexpr int TILES_X = (OW + COLS - 1) / COLS;
constexpr int TILES_Y = (OH + TILE_ROWS - 1) / TILE_ROWS;
constexpr int FILTER_PARTS = (M + FILTERS - 1) / FILTERS;

static_assert(READS == NCHW && WRITES == NCHW, "planes are read and written");
static_assert(ELEMENTS % 8 == 0, "S is a multiple of 32 bytes");
static_assert(SPLITS <= THREADS, "a split has threads that fetch for it");
static_assert(UNIT_ROWS % R == 0 || UNIT_ROWS == 1, "a unit has whole channels or one row");
static_assert(STAGES >= 2, "one round is fetched while another is used");
static_assert(WORKERS <= THREADS, "a thread for each strip of each group and split");
static_assert(FILTERS % 4 == 0 && (FM % 4 == 0 || FM < 4), "filters are read four at a time");
static_assert(PITCH % 4 == 0 && PITCH >= VECTORS * VECTOR, "a line starts on 16 bytes");
static_assert(PITCH >= (COLS - 4) * STRIDE + (SPAN + 3) / 4 * 4, "quads are read in vectors");
static_assert(4 * SPLITS * (RING > FILTERS * TILE ? RING : FILTERS * TILE) <= SHARED_BYTES,
              "the launcher's layout differs");

// Channels of a split that the whole units among its first `elements` filter elements read.
__device__ __forceinline__ int channels_read(int elements) {
    const int rows = min(elements / UNIT, UNITS) * UNIT_ROWS;
    return (rows + R - 1) / R;
}

// The threads of a split fetch for it. What they need round after round is pinned to registers,
// or the compiler would work it out from the thread's number each time.
constexpr int FETCHERS = THREADS / SPLITS;

__device__ __forceinline__ int pinned(int value) {
    asm volatile("" : "+r"(value));
    return value;
}

struct FilterFetch {
    const float* from;  // of this round
    int to;             // in the split's ring buffer
    int at;             // which vector of the round is this thread's first

    __device__ __forceinline__ void round(float* ring) {
        constexpr int COUNT = ELEMENTS * FILTERS;
#pragma unroll
        for (int k = 0; k < COUNT; k += 4 * FETCHERS) {
            const int offset = to + k >= FILTER_RING ? to + k - FILTER_RING : to + k;
            if (k + 4 * FETCHERS <= COUNT || k + at < COUNT) ptx::copy16(ring + offset, from + k);
        }
        from += COUNT;
        to += COUNT;
        if (to >= FILTER_RING) to -= FILTER_RING;
    }
};

// A thread copies the same vectors of every channel that it copies.
constexpr int CHANNEL_VECTORS = LINES * VECTORS;
constexpr int PER_THREAD = (CHANNEL_VECTORS + FETCHERS - 1) / FETCHERS;
constexpr int AT_ONCE = CHANNEL_VECTORS < FETCHERS ? FETCHERS / CHANNEL_VECTORS : 1;
constexpr int LINE_RING = RING_CH * LINES * PITCH;

struct LineFetch {
    const float* plane;    // of the next channel
    int channel, offset;   // the next channel, and its offset in the ring
    int from[PER_THREAD];  // in the plane
    int to[PER_THREAD];    // from the offset, negative where there is nothing to copy
    int end[PER_THREAD];   // channels that have this vector: none outside the map

    __device__ __forceinline__ LineFetch(const float* image, int at, int top, int left,
                                         int channels) {
        channel = CHANNEL_VECTORS < FETCHERS ? at / CHANNEL_VECTORS : 0;
        plane = image + size_t(channel) * (H * W);
        offset = channel % RING_CH * LINES * PITCH;
#pragma unroll
        for (int k = 0; k < PER_THREAD; ++k) {
            const int i = (CHANNEL_VECTORS < FETCHERS ? at % CHANNEL_VECTORS : at) + k * FETCHERS;
            const int iy = top + i / VECTORS, ix = left + i % VECTORS * VECTOR;
            const bool inside = iy >= 0 && iy < H && ix >= 0 && ix < W;
            const bool copies = i < CHANNEL_VECTORS && channel < AT_ONCE;
            from[k] = pinned(inside ? iy * W + ix : 0);
            to[k] = pinned(copies ? i / VECTORS * PITCH + i % VECTORS * VECTOR : -1);
            end[k] = pinned(inside ? channels : 0);
        }
    }
    __device__ __forceinline__ void until(float* ring, int last) {
#pragma unroll 1
        for (; channel < last; channel += AT_ONCE) {
#pragma unroll
            for (int k = 0; k < PER_THREAD; ++k) {
                if (to[k] < 0) continue;
                if (VECTOR == 4)
                    ptx::copy16_or_zero(ring + offset + to[k], plane + from[k], channel < end[k]);
                else
                    ptx::copy4_or_zero(ring + offset + to[k], plane + from[k], channel < end[k]);
            }
            plane += AT_ONCE * (H * W);
            offset += AT_ONCE % RING_CH * LINES * PITCH;
            if (offset >= LINE_RING) offset -= LINE_RING;
        }
    }
};

template <int COUNT>
__device__ __forceinline__ void load(float (&to)[COUNT], const float* from) {
    if constexpr (COUNT % 4 == 0) {
#pragma unroll
        for (int k = 0; k < COUNT; k += 4)
            *reinterpret_cast<float4*>(to + k) = *reinterpret_cast<const float4*>(from + k);
    } else {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) to[k] = from[k];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv_stride_fixed(const float* __restrict__ x, const float* __restrict__ w,
                      float* __restrict__ y) {
    extern __shared__ __align__(16) float rings[];
    const int part = blockIdx.x / FILTER_PARTS % (TILES_X * TILES_Y);
    const int filter_part = blockIdx.x % FILTER_PARTS;
    const size_t n = blockIdx.x / (FILTER_PARTS * TILES_X * TILES_Y);
    const int y0 = part / TILES_X * TILE_ROWS, x0 = part % TILES_X * COLS;
    const int top = y0 * STRIDE - PAD, left = x0 * STRIDE - PAD - SHIFT;
    x += n * (size_t(CH) * H * W);
    w += size_t(filter_part) * (SPLITS * ROUNDS * ELEMENTS * FILTERS);

    const int mine = threadIdx.x / FETCHERS;  // the split it fetches for
    const bool fetches = mine < SPLITS;
    const int at = threadIdx.x % FETCHERS, channels = min(CH - mine * SPLIT_CH, SPLIT_CH);
    const int ring_at = pinned(mine * RING);
    FilterFetch filters{w + mine * (ROUNDS * ELEMENTS * FILTERS) + 4 * at, 4 * at, 4 * at};
    LineFetch lines(x + size_t(mine) * (SPLIT_CH * H * W), at, top, left, channels);
    const auto fetch = [&](int round) {
        if (fetches && round < ROUNDS) {
            filters.round(rings + ring_at);
            lines.until(rings + ring_at + FILTER_RING, channels_read((round + 1) * ELEMENTS));
        }
        ptx::copy_commit();
    };

    // strips side by side, then filter groups, then splits
    const bool works = threadIdx.x < WORKERS;
    const int strip = threadIdx.x % STRIPS, rest = works ? threadIdx.x / STRIPS : 0;
    const int group = rest % GROUPS, split = rest / GROUPS;
    const float* elements = rings + split * RING + group * FM;
    int quad_at[QUADS];
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        const int quad = min(strip + q * STRIPS, TILE_QUADS - 1);
        quad_at[q] = split * RING + FILTER_RING + quad / ROW_QUADS * STRIDE * PITCH +
                     quad % ROW_QUADS * 4 * STRIDE;
    }

    float sum[FM][4 * QUADS] = {};
    const auto multiply_row = [&](int line_at, int element_at) {
        float pixel[QUADS][(SPAN + 3) / 4 * 4];
#pragma unroll
        for (int q = 0; q < QUADS; ++q) load(pixel[q], rings + quad_at[q] + line_at);
#pragma unroll
        for (int s = 0; s < S; ++s) {
            float f[FM];
            load(f, elements + element_at + s * FILTERS);
#pragma unroll
            for (int k = 0; k < FM; ++k)
#pragma unroll
                for (int p = 0; p < 4 * QUADS; ++p)
                    sum[k][p] =
                        fmaf(f[k], pixel[p / 4][SHIFT + p % 4 * STRIDE + s], sum[k][p]);
        }
    };

#pragma unroll 1
    for (int round = 0; round < STAGES - 1; ++round) fetch(round);
    int unit = 0, element_at = 0, line_at = 0, rows_left = R;  // of the channel
#pragma unroll 1
    for (int round = 0; round < ROUNDS; ++round) {
        ptx::copy_wait<STAGES - 2>();
        __syncthreads();
        fetch(round + STAGES - 1);
        const int units = min((round + 1) * ELEMENTS / UNIT, UNITS);
#pragma unroll 1
        for (; unit < units; ++unit) {
#pragma unroll
            for (int k = 0; k < UNIT_ROWS; ++k)
                multiply_row(line_at + (k / R * LINES + k % R) * PITCH, element_at + k * S * FILTERS);
            element_at += UNIT * FILTERS;
            if (element_at == FILTER_RING) element_at = 0;
            if (UNIT_ROWS % R == 0) {
                line_at += UNIT_CH * LINES * PITCH;
            } else {
                line_at += PITCH;
                if (--rows_left > 0) continue;
                rows_left = R;
                line_at += (LINES - R) * PITCH;
            }
            if (line_at == RING_CH * LINES * PITCH) line_at = 0;
        }
    }

    ptx::copy_wait<0>();
    __syncthreads();
    if (works) {
#pragma unroll
        for (int k = 0; k < FM; ++k)
#pragma unroll
            for (int q = 0; q < QUADS; ++q)
                if (strip + q * STRIPS < TILE_QUADS)
                    *reinterpret_cast<float4*>(rings + (split * FILTERS + group * FM + k) * TILE +
                                               4 * (strip + q * STRIPS)) =
                        make_float4(sum[k][4 * q], sum[k][4 * q + 1], sum[k][4 * q + 2],
                                    sum[k][4 * q + 3]);
    }
    __syncthreads();
    y += n * (size_t(M) * PIXELS);
    for (int i = threadIdx.x; i < FILTERS * TILE; i += THREADS) {
        const int m = filter_part * FILTERS + i / TILE;
        const int oy = y0 + i % TILE / COLS, ox = x0 + i % COLS;
        if (m >= M || oy >= OH || ox >= OW) continue;
        float total = rings[i];
#pragma unroll
        for (int k = 1; k < SPLITS; ++k) total += rings[k * FILTERS * TILE + i];
        y[(size_t(m) * OH + oy) * OW + ox] = total;
    }
}
