// Stride-fixed blocks, as published (Pascal paper, sections 2.3 and 3.2, Fig. 3).
// SMS x EACH blocks go round tiles of COLUMNS pixels (W'x) in FILTERS maps (M'). A round has the next
// ELEMENTS floats (S / 4) of each filter along (c, r, s), and the lines (W'y) that they read; while one
// round is used the next comes through registers into the other half of shared memory. A thread has
// its pixels, COLUMNS apart by THREADS at most, in a share of the filters. W'x runs on from line to
// line of the padded map. DIVISION is section 2.3's (b) to (e): who gets which tiles.
// x (n, C, H, W); w (M, C, R, S), or packed (filter group, round, M', element); y (n, M, OH, OW).
#include "stages/conv/shape.cuh"
#if ASYNC
#include "gpu/ptx/async.cuh"
#endif

constexpr int CHANNELS_DIVIDED = 0, FILTERS_DIVIDED = 1, MAPS_DIVIDED = 2, BOTH_DIVIDED = 3;

constexpr int WP = W + 2 * PAD, HP = H + 2 * PAD;
constexpr int FILTER = CH * R * S;                       // floats of a filter
constexpr int PART_CH = DIVISION == CHANNELS_DIVIDED ? (CH + SMS - 1) / SMS : CH;
constexpr int PART_LINES = DIVISION == MAPS_DIVIDED ? (HP + SMS - 1) / SMS : HP;
constexpr int POSITIONS = (OH - 1) * WP + OW;
constexpr int PART = PART_LINES * WP < POSITIONS ? PART_LINES * WP : POSITIONS;
constexpr int SEGMENTS = (PART + COLUMNS - 1) / COLUMNS;
constexpr int FILTER_GROUPS = (M + FILTERS - 1) / FILTERS;
constexpr int ROUNDS = (PART_CH * R * S + ELEMENTS - 1) / ELEMENTS;
constexpr int LINES = (ELEMENTS + S - 1) / S;            // W'y
constexpr int REACH = COLUMNS + S - 1;                   // pixels of a line that a tile reads
constexpr int PITCH = (REACH + 3) / 4 * 4;
constexpr bool FILTERS_CACHED = CACHED && DIVISION == FILTERS_DIVIDED;
constexpr bool LINES_CACHED = CACHED && DIVISION == MAPS_DIVIDED;
constexpr int SETS = FILTERS_CACHED ? ROUNDS : 2;
constexpr int TWO = 2 * LINES + 1;                       // lines of two rounds, and one of both
constexpr int RING = LINES_CACHED && PART_CH * R > TWO ? PART_CH * R : TWO;
constexpr int SET = ELEMENTS * FILTERS;

constexpr int GROUPS = THREADS > COLUMNS ? THREADS / COLUMNS : 1;
constexpr int PX = COLUMNS > THREADS ? COLUMNS / THREADS : 1;
constexpr int ACROSS = COLUMNS / PX;                     // threads of the same filters
constexpr int FM = FILTERS / GROUPS;
constexpr int VECTOR = ELEMENTS % 4 == 0 ? 4 : 1;        // filter elements read from shared memory at once

static_assert(READS == NCHW && WRITES == NCHW, "planes are read and written");
static_assert(STRIDE == 1, "equation (1) has no stride");
static_assert(ACROSS * GROUPS == THREADS && ACROSS % 32 == 0, "warps share their filters");
static_assert(FILTERS % GROUPS == 0, "groups of threads share the filters out");
static_assert(DIVISION != FILTERS_DIVIDED || FILTER_GROUPS <= SMS, "every filter has an owner");
static_assert(!LINES_CACHED || SEGMENTS == 1, "cached lines are of one run of pixels");
static_assert(!LINES_CACHED || !ASYNC, "cached lines are replaced between two barriers");
static_assert(!PACKED || DIVISION == BOTH_DIVIDED, "packed by groups of filters and rounds");
static_assert(4 * (SETS * SET + RING * PITCH) == SHARED_BYTES, "launcher differs");

struct Tile {
    size_t n;
    int group, at, channel;            // of filters; first pixel; first channel
    bool first_filters, first_lines;   // whether what is cached is still missing
};

__device__ __forceinline__ int items(int n) {
    const int sm = blockIdx.x % SMS;
    if (DIVISION == FILTERS_DIVIDED) return sm < FILTER_GROUPS ? n * SEGMENTS : 0;
    if (DIVISION == MAPS_DIVIDED && sm * PART_LINES >= OH) return 0;
    if (DIVISION == CHANNELS_DIVIDED && sm * PART_CH >= CH) return 0;
    return n * SEGMENTS * FILTER_GROUPS;
}

__device__ __forceinline__ int first_item() {
    return DIVISION == BOTH_DIVIDED ? blockIdx.x : blockIdx.x / SMS;
}

__device__ __forceinline__ int step() { return DIVISION == BOTH_DIVIDED ? gridDim.x : EACH; }

__device__ __forceinline__ Tile tile(int item) {
    const int sm = blockIdx.x % SMS;
    if (DIVISION == FILTERS_DIVIDED)
        return {size_t(item / SEGMENTS), sm, item % SEGMENTS * COLUMNS, 0,
                item == first_item(), true};
    const size_t n = item / (SEGMENTS * FILTER_GROUPS);
    const int group = item % FILTER_GROUPS, at = item / FILTER_GROUPS % SEGMENTS * COLUMNS;
    if (DIVISION == MAPS_DIVIDED) {
        const bool first = item == first_item() || (item - EACH) / (SEGMENTS * FILTER_GROUPS) != n;
        return {n, group, sm * PART_LINES * WP + at, 0, true, first};
    }
    return {n, group, at, DIVISION == CHANNELS_DIVIDED ? sm * PART_CH : 0, true, true};
}

// A round of a tile, and where the tile's first line lies in the ring buffer.
struct Round {
    int item, round, base;

    __device__ __forceinline__ int channels() const {
        if (DIVISION != CHANNELS_DIVIDED) return CH;
        return min(PART_CH, CH - int(blockIdx.x % SMS) * PART_CH);
    }
    __device__ __forceinline__ int elements() const { return channels() * (R * S); }
    __device__ __forceinline__ int lines_by(int rounds) const {
        return min((rounds * ELEMENTS + S - 1) / S, channels() * R);
    }
    __device__ __forceinline__ int slot(int line) const {
        return (LINES_CACHED ? line : base + line) % RING;
    }
    __device__ __forceinline__ Round after() const {
        if ((round + 1) * ELEMENTS < elements()) return {item, round + 1, base};
        return {item + step(), 0, (base + channels() * R) % RING};
    }
};

// A thread's copies of a round: through its registers, or past them. It has the same offset in
// filters, and the same pixels of lines, that are a fixed way apart.
struct Fetch {
    static constexpr int AT_ONCE = THREADS / ELEMENTS > 0 ? THREADS / ELEMENTS : 1;  // filters
    static constexpr int OF_FILTERS = (FILTERS + AT_ONCE - 1) / AT_ONCE;
    static constexpr int PIECES = (ELEMENTS + THREADS - 1) / THREADS;
    static constexpr int OF_LINES = (LINES + GROUPS - 1) / GROUPS;
    static constexpr int HALO = S > 1 ? 1 : 0;
    static_assert(PIECES == 1, "a filter's segment is copied at once");
    static_assert(S - 1 <= ACROSS, "a thread copies a pixel beyond the tile at most");
    float filter[ASYNC ? 1 : OF_FILTERS], pixel[ASYNC ? 1 : OF_LINES][PX + HALO];

    template <class Each>
    static __device__ __forceinline__ void filters(const Tile& t, Each each) {
        if (FILTERS_CACHED && !t.first_filters) return;
        const int first = threadIdx.x / ELEMENTS, element = threadIdx.x % ELEMENTS;
#pragma unroll
        for (int k = 0; k < OF_FILTERS; ++k) {
            const int m = first + k * AT_ONCE;
            if (first < AT_ONCE && (FILTERS % AT_ONCE == 0 || m < FILTERS)) each(k, m, element);
        }
    }
    template <class Each>
    static __device__ __forceinline__ void lines(const Tile& t, const Round& r, Each each) {
        if (LINES_CACHED && !t.first_lines) return;
        const int end = r.lines_by(r.round + 1), across = threadIdx.x % ACROSS;
        int line = r.lines_by(r.round) + threadIdx.x / ACROSS;
#pragma unroll
        for (int k = 0; k < OF_LINES; ++k, line += GROUPS) {
            if (line >= end) continue;
#pragma unroll
            for (int p = 0; p < PX; ++p) each(k, p, line, across + p * ACROSS);
            if (HALO && across < S - 1) each(k, PX, line, COLUMNS + across);
        }
    }
    static __device__ __forceinline__ void copy(float& held, float* to, const float* from,
                                                bool there) {
#if ASYNC
        ptx::copy4_or_zero(to, from, there);
#else
        held = there ? *from : 0.0f;
#endif
    }

    __device__ __forceinline__ void load(const Round& r, const float* x, const float* w,
                                         float* set, float* ring) {
        const Tile t = tile(r.item);
        const int left = r.elements() - r.round * ELEMENTS, filters_left = M - t.group * FILTERS;
        const float* segments =
            PACKED ? w + (size_t(t.group) * ROUNDS + r.round) * SET
                   : w + size_t(t.group) * (FILTERS * FILTER) + t.channel * (R * S) + r.round * ELEMENTS;
        filters(t, [&](int k, int m, int element) {
            const bool there = PACKED || (m < filters_left && element < left);
            const float* from = segments + m * (PACKED ? ELEMENTS : FILTER) + element;
            copy(filter[ASYNC ? 0 : k], set + m * ELEMENTS + element, there ? from : w, there);
        });
        const float* image = x + t.n * (size_t(CH) * H * W) + t.channel * (H * W);
        lines(t, r, [&](int k, int p, int line, int i) {
            const int at = t.at + line % R * WP + i;
            const int row = at / WP - PAD, col = at % WP - PAD;
            const bool there = PAD ? row >= 0 && row < H && col >= 0 && col < W : at < H * W;
            const float* from = image + line / R * (H * W) + (PAD ? row * W + col : at);
            copy(pixel[ASYNC ? 0 : k][p], ring + r.slot(line) * PITCH + i, there ? from : x,
                 there);
        });
#if ASYNC
        ptx::copy_commit();
#endif
    }
    __device__ __forceinline__ void store(const Round& r, float* set, float* ring) const {
#if ASYNC
        ptx::copy_wait<0>();
#else
        const Tile t = tile(r.item);
        filters(t, [&](int k, int m, int element) { set[m * ELEMENTS + element] = filter[k]; });
        lines(t, r, [&](int k, int p, int line, int i) {
            ring[r.slot(line) * PITCH + i] = pixel[k][p];
        });
#endif
    }
};

// Goes along (c, r, s): a thread's pixel under the next filter element.
struct Walk {
    const float* ring;
    int slot, s;

    __device__ __forceinline__ const float* next() {
        const float* found = ring + slot * PITCH + s;
        if (++s == S) {
            s = 0;
            if (++slot == RING) slot = 0;
        }
        return found;
    }
};

using Sums = float[PX][FM];

template <int COUNT>
__device__ __forceinline__ void multiply(Sums& sum, Walk& walk, const float* filters) {
    float pixel[COUNT][PX];
#pragma unroll
    for (int t = 0; t < COUNT; ++t) {
        const float* from = walk.next();
#pragma unroll
        for (int p = 0; p < PX; ++p) pixel[t][p] = from[p * ACROSS];
    }
#pragma unroll
    for (int k = 0; k < FM; ++k) {
        float f[COUNT];
        if constexpr (COUNT == 4) {
            const float4 v = *reinterpret_cast<const float4*>(filters + k * ELEMENTS);
            f[0] = v.x, f[1] = v.y, f[2] = v.z, f[3] = v.w;
        } else {
            f[0] = filters[k * ELEMENTS];
        }
#pragma unroll
        for (int t = 0; t < COUNT; ++t)
#pragma unroll
            for (int p = 0; p < PX; ++p) sum[p][k] = fmaf(f[t], pixel[t][p], sum[p][k]);
    }
}

__device__ __forceinline__ void write(float* __restrict__ y, const Tile& t, int x, int group,
                                      Sums& sum) {
    const int end = DIVISION == MAPS_DIVIDED ? (blockIdx.x % SMS + 1) * PART_LINES * WP : HP * WP;
#pragma unroll
    for (int p = 0; p < PX; ++p) {
        const int at = t.at + x + p * ACROSS;
        const int oy = at / WP, ox = at % WP;
        const bool there = oy < OH && ox < OW && at < end;
        const int m = t.group * FILTERS + group * FM;
        float* const to = y + ((t.n * M + m) * OH + oy) * OW + ox;
#pragma unroll
        for (int k = 0; k < FM; ++k) {
            if (there && m + k < M) {
                if (DIVISION == CHANNELS_DIVIDED) atomicAdd(to + k * PIXELS, sum[p][k]);
                else to[k * PIXELS] = sum[p][k];
            }
            sum[p][k] = 0.0f;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_strict(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
                int n) {
    extern __shared__ __align__(16) float sets[];
    float* const ring = sets + SETS * SET;
    const int count = items(n), first = first_item();
    if (first >= count) return;
    const int across = threadIdx.x % ACROSS, group = threadIdx.x / ACROSS;

    Round now{first, 0, 0};
    Fetch fetch;
    fetch.load(now, x, w, sets, ring);
    fetch.store(now, sets, ring);
    __syncthreads();
    Sums sum = {};
    int half = 0;
    while (true) {
        const Round next = now.after();
        const bool more = next.item < count;
        float* const to = sets + (FILTERS_CACHED ? next.round : half ^ 1) * SET;
        if (more) fetch.load(next, x, w, to, ring);

        const int from = now.round * ELEMENTS;
        Walk walk{ring + across, now.slot(from / S), from % S};
        const float* filters =
            sets + (FILTERS_CACHED ? now.round : half) * SET + group * FM * ELEMENTS;
        if (now.elements() - from >= ELEMENTS) {
#pragma unroll 1
            for (int t = 0; t < ELEMENTS; t += VECTOR) multiply<VECTOR>(sum, walk, filters + t);
        } else {
#pragma unroll 1
            for (int t = 0; t < now.elements() - from; ++t) multiply<1>(sum, walk, filters + t);
        }
        if (next.round == 0) write(y, tile(now.item), across, group, sum);
        if (!more) break;
        if (LINES_CACHED) __syncthreads();
        fetch.store(next, to, ring);
        __syncthreads();
        now = next;
        half ^= 1;
    }
}
