// What a block of taps.cu holds in shared memory, and whose turn it is: a ring of patches of split images,
// a ring of taps of filters, and barriers that say of each that it is there, or free.
#pragma once
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/barrier.cuh"
#include "stages/conv/tensor/positions.cuh"

constexpr int WARPGROUP = 128, BARRIER_BYTES = 8;
constexpr int MULTIPLIERS = 2;                // warpgroups
constexpr int THREADS = (MULTIPLIERS + 1) * WARPGROUP;
constexpr int MULTIPLIES = 240, BRINGS = 24;  // registers of a thread
constexpr int BM = MULTIPLIERS * WIDE, BN = 64;
constexpr int KEPT = ACROSS_X * BM * BN;       // sums of a block
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

// Taps of a chunk's phase, in a row, in a column and in all: as many in each but where a stride cuts them
// into unlike phases.
constexpr bool ALIKE_X = TAPS_X % PHASES_X == 0, ALIKE_Y = R % PHASES_Y == 0;

__device__ __forceinline__ int taps_across(int chunk) {
    if (ALIKE_X) return TAPS_X / PHASES_X;
    return (TAPS_X - chunk / EACH % PHASES_X + STEP_X - 1) / STEP_X;
}
__device__ __forceinline__ int taps_of(int chunk) {
    if (ALIKE_Y) return R / PHASES_Y * taps_across(chunk);
    return (R - chunk / EACH / PHASES_X + STRIDE - 1) / STRIDE * taps_across(chunk);
}
__device__ __forceinline__ int taps_of(int first, int end) {
    if (ALIKE_X && ALIKE_Y) return (end - first) * (TAPS / PHASES);
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
