// Convolution as products by Hopper's wgmma (sm_90a), every input read once a block: split images lie
// as planes of 8 channels [part][phase][CP / 8][position] whose positions run over the padded rows of
// all images, PITCH a row, SLOT an image. A tap is the same patch of positions read from r * PITCH + s
// cells on, so one patch of CHUNK planes serves all taps; with a stride those of its phase, r and s in
// strides. What is no output is computed and dropped. Rows of a product are filters, columns positions.
// A block computes BN filters x BM positions at a time of a SPLIT-th of the channels, and takes tiles in
// turn: two warpgroups multiply WIDE positions each; a thread of a third brings patches and taps of filters,
// [M / BN][phase][chunk][tap][part][CHUNK][BN][8], by bulk copies, PATCHES and STAGES ahead. A chunk's
// sums of a tap start from zero and are added to fp32 registers while the next tap's are under way. After
// AT_ONCE taps these are set aside in `kept` and start anew (KEEPS), so that few roundings follow one another.
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/barrier.cuh"
#include "gpu/ptx/registers.cuh"
#include "stages/conv/tensor/positions.cuh"
#include "stages/conv/tensor/wide.cuh"

constexpr int WARPGROUP = 128, BARRIER_BYTES = 8;
constexpr int MULTIPLIERS = 2;                // warpgroups
constexpr int THREADS = (MULTIPLIERS + 1) * WARPGROUP;
constexpr int MULTIPLIES = 240, BRINGS = 24;  // registers of a thread
constexpr int BM = MULTIPLIERS * WIDE, BN = 64;
constexpr int CELLS = 8;                      // of a chunk: of 8 / PARTS of the depth
constexpr int CHUNK = CELLS / PARTS, STEPS = CHUNK / 2;
constexpr int EACH = GROUPS / CHUNK, CHUNKS = PHASES * EACH;
constexpr int TAPS = R * TAPS_X;              // of all phases
constexpr int SHARE = (CHUNKS + SPLIT - 1) / SPLIT;
constexpr int PATCH = BM + (R - 1) / STRIDE * PITCH + (TAPS_X - 1) / STEP_X;
constexpr int PLANE_BYTES = PATCH * CELL_BYTES, PATCH_BYTES = CELLS * PLANE_BYTES;
constexpr int TAP_BYTES = CELLS * BN * CELL_BYTES, PATCHES_AT = STAGES * TAP_BYTES;
constexpr int BARRIERS_AT = PATCHES_AT + PATCHES * PATCH_BYTES;
constexpr int LINES_AT = BARRIERS_AT + 2 * (PATCHES + STAGES) * BARRIER_BYTES;
constexpr int WARPS = MULTIPLIERS * WARPGROUP / WARP;
constexpr int FOURS = WIDE / 8;               // of a thread's sums

static_assert(GROUPS % CHUNK == 0, "whole chunks hold every channel");
static_assert(WIDE % 8 == 0 && 3 * WIDE / 2 <= MULTIPLIES - 32, "sums fit into registers");
static_assert(MULTIPLIERS * MULTIPLIES + BRINGS <= 512, "registers of a lane of each warpgroup fit");
static_assert(PATCHES >= 2 && STAGES >= 2, "a pair of taps may be of two patches");
static_assert(SHARED_BYTES == LINES_AT + WARPS * LINES_BYTES, "the launcher's");
static_assert(MP % BN == 0 && MP >= M, "filters are padded to whole blocks");
static_assert((CHUNKS + SHARE - 1) / SHARE == SPLIT, "every part has chunks");

struct Tile {
    static constexpr int ACROSS = MP / BN;    // tiles of the same positions follow one another
    int part, position, column, first, end;   // `first` to `end`: its chunks

    __device__ __forceinline__ explicit Tile(int n)
        : part(n / ACROSS % SPLIT), position(n / (ACROSS * SPLIT) * BM), column(n % ACROSS),
          first(part * SHARE), end(min(CHUNKS, part * SHARE + SHARE)) {}
    __device__ __forceinline__ static int count(int images) {
        return (images * SLOT + BM - 1) / BM * (ACROSS * SPLIT);
    }
};

// Taps of a chunk's phase, in a row and in all.
__device__ __forceinline__ int taps_across(int chunk) {
    return PHASES == 1 ? TAPS_X : (TAPS_X - chunk / EACH % PHASES_X + STEP_X - 1) / STEP_X;
}
__device__ __forceinline__ int taps_of(int chunk) {
    if (PHASES == 1) return TAPS;
    return (R - chunk / EACH / PHASES_X + STRIDE - 1) / STRIDE * taps_across(chunk);
}
__device__ __forceinline__ int taps_of(int first, int end) {
    if (PHASES == 1) return (end - first) * TAPS;
    int taps = 0;
    for (int chunk = first; chunk < end; ++chunk) taps += taps_of(chunk);
    return taps;
}

// A place in a ring, and whether it came round an odd number of times.
template <int SIZE>
struct Turn {
    int at = 0;
    u32 odd = 0;

    __device__ __forceinline__ void step() {
        if (++at == SIZE) at = 0, odd ^= 1;
    }
};
// A tap of a chunk, and where its operands lie in both rings.
struct Place {
    Turn<PATCHES> patch;
    Turn<STAGES> stage;
    int chunk, tap = 0;

    __device__ __forceinline__ bool last() const { return tap + 1 == taps_of(chunk); }
    __device__ __forceinline__ void step() {
        const bool over = last();
        stage.step(), ++tap;
        if (over) tap = 0, ++chunk, patch.step();
    }
};

// Per patch and stage: it is there; every warp is done with it.
struct Rings {
    u32 base, patch_full, patch_free, stage_full, stage_free;

    __device__ __forceinline__ explicit Rings(u32 base)
        : base(base), patch_full(base + BARRIERS_AT),
          patch_free(patch_full + PATCHES * BARRIER_BYTES),
          stage_full(patch_free + PATCHES * BARRIER_BYTES),
          stage_free(stage_full + STAGES * BARRIER_BYTES) {}
    __device__ __forceinline__ void begin() const {
        for (int i = 0; i < PATCHES + STAGES; ++i) {
            const bool patch = i < PATCHES;
            const int at = (patch ? i : i - PATCHES) * BARRIER_BYTES;
            ptx::barrier_init((patch ? patch_full : stage_full) + at, 1);
            ptx::barrier_init((patch ? patch_free : stage_free) + at, WARPS);
        }
        ptx::barrier_init_fence();
    }
    __device__ __forceinline__ void wait(const Place& place) const {
        if (place.tap == 0)
            ptx::barrier_wait(patch_full + place.patch.at * BARRIER_BYTES, place.patch.odd);
        ptx::barrier_wait(stage_full + place.stage.at * BARRIER_BYTES, place.stage.odd);
    }
    // This warp's products have read it.
    __device__ __forceinline__ void release(Place& place) const {
        if (threadIdx.x % WARP == 0) {
            ptx::barrier_arrive(stage_free + place.stage.at * BARRIER_BYTES);
            if (place.last())
                ptx::barrier_arrive(patch_free + place.patch.at * BARRIER_BYTES);
        }
        place.step();
    }
};

// All that a block reads, by one thread. `plane`: positions from one plane to the next.
__device__ __forceinline__ void bring(const Rings& rings, const uint4* __restrict__ images,
                                      const uint4* __restrict__ filters, int tiles, int plane) {
    Place place;
    for (int n = blockIdx.x; n < tiles; n += gridDim.x) {
        const Tile tile(n);
        const size_t before = size_t(tile.column) * (EACH * TAPS) + taps_of(0, tile.first);
        const uint4* from = filters + before * (CELLS * BN);
        place.chunk = tile.first;
        for (int chunk = tile.first; chunk < tile.end; ++chunk) {
            const int patch = place.patch.at;
            ptx::barrier_wait(rings.patch_free + patch * BARRIER_BYTES, place.patch.odd ^ 1);
            const u32 there = rings.patch_full + patch * BARRIER_BYTES;
            ptx::barrier_expect(there, PATCH_BYTES);
            for (int i = 0; i < CELLS; ++i) {
                const int group = i / CHUNK * (PHASES * GROUPS) + chunk * CHUNK + i % CHUNK;
                ptx::bulk_load(rings.base + PATCHES_AT + patch * PATCH_BYTES + i * PLANE_BYTES,
                               images + size_t(group) * plane + tile.position, PLANE_BYTES, there);
            }
            for (int left = taps_of(chunk); left; --left, from += CELLS * BN, place.step()) {
                const int stage = place.stage.at;
                ptx::barrier_wait(rings.stage_free + stage * BARRIER_BYTES, place.stage.odd ^ 1);
                ptx::barrier_expect(rings.stage_full + stage * BARRIER_BYTES, TAP_BYTES);
                ptx::bulk_load(rings.base + stage * TAP_BYTES, from, TAP_BYTES,
                               rings.stage_full + stage * BARRIER_BYTES);
            }
        }
    }
}

// A tap's products of a chunk, small ones first, from zero.
__device__ __forceinline__ void multiply(float (&sum)[WIDE / 2], const Rings& rings,
                                         const Place& place, int group) {
    constexpr int FILTER_STEP = 2 * BN, PATCH_STEP = 2 * PATCH;  // of a descriptor, 16 of the depth on
    constexpr int FILTER_LOW = CHUNK * BN, PATCH_LOW = CHUNK * PATCH;
    constexpr int OTHER = PARTS == 2 ? FILTER_LOW : 0;
    const int across = taps_across(place.chunk);
    const int shift = group * WIDE + place.tap / across * PITCH + place.tap % across;
    const u64 row = ptx::operand(rings.base + place.stage.at * TAP_BYTES, BN * CELL_BYTES,
                                 CELL * CELL_BYTES);
    const u64 column = ptx::operand(
        rings.base + PATCHES_AT + place.patch.at * PATCH_BYTES + shift * CELL_BYTES, PLANE_BYTES,
        CELL * CELL_BYTES);
    ptx::wgmma_fence();
    ptx::wgmma<false>(sum, row + OTHER, column);
#pragma unroll
    for (int s = 1; s < STEPS; ++s)
        ptx::wgmma<true>(sum, row + OTHER + s * FILTER_STEP, column + s * PATCH_STEP);
    if (PARTS == 2) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
            ptx::wgmma<true>(sum, row + s * FILTER_STEP, column + PATCH_LOW + s * PATCH_STEP);
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
            ptx::wgmma<true>(sum, row + s * FILTER_STEP, column + s * PATCH_STEP);
    }
    ptx::wgmma_commit();
}
// Adds a tap's sums where at most PENDING taps after it are under way; a loop that ends with one is
// not serialised by ptxas.
template <int PENDING>
__device__ __forceinline__ void finish(float (&sums)[WIDE / 2], float (&sum)[WIDE / 2],
                                       const Rings& rings, Place& place) {
    ptx::wgmma_wait<PENDING>();
    rings.release(place);
    ptx::settle(sum);
#pragma unroll
    for (int i = 0; i < WIDE / 2; ++i) sums[i] += sum[i];
}

// A thread's sums of the taps so far, which only it reads.
struct Aside {
    float4* at;

    __device__ __forceinline__ Aside(float* kept, int thread)
        : at(reinterpret_cast<float4*>(kept) + size_t(blockIdx.x) * (BM * BN / 4) + thread) {}
    __device__ __forceinline__ void add_to(float (&sums)[WIDE / 2]) const {
#pragma unroll
        for (int i = 0; i < FOURS; ++i) {
            const float4 four = __ldcg(at + i * (MULTIPLIERS * WARPGROUP));
            sums[4 * i] += four.x, sums[4 * i + 1] += four.y;
            sums[4 * i + 2] += four.z, sums[4 * i + 3] += four.w;
        }
    }
    // Instead of what was there, to which they are added unless it is the `first`; they are zero then.
    __device__ __forceinline__ void take(float (&sums)[WIDE / 2], bool first) const {
        if (!first) add_to(sums);
#pragma unroll
        for (int i = 0; i < FOURS; ++i)
            __stcg(at + i * (MULTIPLIERS * WARPGROUP),
                   {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]});
#pragma unroll
        for (int i = 0; i < WIDE / 2; ++i) sums[i] = 0.0f;
    }
};

// `kept`: BM * BN floats a block where sums are set aside; then parts.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    tensor_taps(const uint4* __restrict__ images, const uint4* __restrict__ filters,
                const int* __restrict__ tops, const int* __restrict__ drops,
                Held* __restrict__ y, float* __restrict__ kept, u32* __restrict__ reached,
                int count, int plane, const float* __restrict__ bias) {
    extern __shared__ __align__(128) unsigned char memory[];
    const Rings rings(ptx::shared(memory));
    const int group = __shfl_sync(~0u, int(threadIdx.x) / WARPGROUP, 0);
    const int tiles = Tile::count(count);
    if (threadIdx.x == 0) rings.begin();
    __syncthreads();
    follow();
    if (group == MULTIPLIERS) {
        ptx::fewer_registers<BRINGS>();
        if (threadIdx.x % WARPGROUP == 0) bring(rings, images, filters, tiles, plane);
        return;
    }
    ptx::more_registers<MULTIPLIES>();
    Place ahead, behind;
    const Aside aside(kept, threadIdx.x);
    float* parts = kept + (KEEPS ? size_t(gridDim.x) * (BM * BN) : 0);
#pragma unroll 1
    for (int n = blockIdx.x; n < tiles; n += gridDim.x) {
        const Tile tile(n);
        float sums[WIDE / 2] = {};
        const auto start = [&](float (&sum)[WIDE / 2]) {
            rings.wait(ahead);
            multiply(sum, rings, ahead, group), ahead.step();
        };
        int left = taps_of(tile.first, tile.end) + (plane < 0);  // ptxas unrolls few known turns
        ahead.chunk = behind.chunk = tile.first;
        float one[WIDE / 2], two[WIDE / 2];
        const auto add = [&](int taps) {
            start(one);
#pragma unroll 1
            for (; taps > 2; taps -= 2) {
                start(two);
                finish<1>(sums, one, rings, behind);
                start(one);
                finish<1>(sums, two, rings, behind);
            }
            if (taps > 1) {
                start(two);
                finish<1>(sums, one, rings, behind);
                finish<0>(sums, two, rings, behind);
            } else {
                finish<0>(sums, one, rings, behind);
            }
        };
        if constexpr (KEEPS) {
            const int taps = left;
#pragma unroll 1
            for (;; left -= AT_ONCE) {
                add(min(left, AT_ONCE));
                if (left <= AT_ONCE) break;
                aside.take(sums, left == taps);
            }
            if (taps > AT_ONCE) aside.add_to(sums);
        } else {
            add(left);
        }
        const int warp = threadIdx.x % WARPGROUP / WARP;
        const Outputs out = {tile.position + group * WIDE, tile.column * BN + warp * 16, count};
        float* part = parts + (long long)tile.part * count * IMAGE_OUTPUTS;
        out.put(sums, tops, drops, bias, reinterpret_cast<Out::Held*>(SPLIT > 1 ? (void*)part : y), reached,
                reinterpret_cast<float*>(memory + LINES_AT + threadIdx.x / WARP * LINES_BYTES));
    }
}
