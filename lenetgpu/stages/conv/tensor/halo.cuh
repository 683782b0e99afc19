// Shared memory of a block of halo.cu: a pipeline of input tiles of split images, a pipeline of filters of one
// filter element each, and full and empty barriers of both.
#pragma once
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/barrier.cuh"
#include "stages/conv/tensor/positions.cuh"

constexpr int WARPGROUP = 128, BARRIER_BYTES = 8;
constexpr int CONSUMERS = 2;                  // warpgroups
constexpr int THREADS = (CONSUMERS + 1) * WARPGROUP;
constexpr int CONSUMER_REGS = 240, PRODUCER_REGS = 24;  // registers of a thread
constexpr int BM = CONSUMERS * WIDE, BN = 64;
constexpr int SAVED = ACROSS_X * BM * BN;      // sums of a block
constexpr int VECS = 8;                       // of a chunk: of 8 / PARTS of K
constexpr int CHUNK = VECS / PARTS, STEPS = CHUNK / 2;
constexpr int EACH = GROUPS / CHUNK, CHUNKS = PHASES * EACH;
constexpr int ELEMENTS = R * ELEMENTS_X;      // of all phases
constexpr int SHARE = (CHUNKS + SPLIT - 1) / SPLIT;
constexpr int INPUT_TILE = BM + (R - 1) / STRIDE * PITCH + (ELEMENTS_X - 1) / STEP_X;
constexpr int PLANE_BYTES = INPUT_TILE * VEC_BYTES, INPUT_BYTES = VECS * PLANE_BYTES;
constexpr int ELEMENT_BYTES = VECS * BN * VEC_BYTES, INPUTS_AT = STAGES * ELEMENT_BYTES;
constexpr int BARRIERS_AT = INPUTS_AT + INPUT_TILES * INPUT_BYTES;
constexpr int LINES_AT = BARRIERS_AT + 2 * (INPUT_TILES + STAGES) * BARRIER_BYTES;
constexpr int WARPS = CONSUMERS * WARPGROUP / WARP;
constexpr int FOURS = WIDE / 8;               // of a thread's sums

static_assert(GROUPS % CHUNK == 0, "whole chunks hold every channel");
static_assert(WIDE % 8 == 0 && 3 * WIDE / 2 <= CONSUMER_REGS - 32, "sums fit into registers");
static_assert(CONSUMERS * CONSUMER_REGS + PRODUCER_REGS <= 512, "registers fit");
static_assert(INPUT_TILES >= 2 && STAGES >= 2, "two filter elements may read two input tiles");
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

// Filter elements of a chunk's phase, in a row, in a column and in all: as many in each but where a stride cuts them
// into unlike phases.
constexpr bool ALIKE_X = ELEMENTS_X % PHASES_X == 0, ALIKE_Y = R % PHASES_Y == 0;

__device__ __forceinline__ int elements_across(int chunk) {
    if (ALIKE_X) return ELEMENTS_X / PHASES_X;
    return (ELEMENTS_X - chunk / EACH % PHASES_X + STEP_X - 1) / STEP_X;
}
__device__ __forceinline__ int elements_of(int chunk) {
    if (ALIKE_Y) return R / PHASES_Y * elements_across(chunk);
    return (R - chunk / EACH / PHASES_X + STRIDE - 1) / STRIDE * elements_across(chunk);
}
__device__ __forceinline__ int elements_of(int first, int end) {
    if (ALIKE_X && ALIKE_Y) return (end - first) * (ELEMENTS / PHASES);
    int elements = 0;
    for (int chunk = first; chunk < end; ++chunk) elements += elements_of(chunk);
    return elements;
}

// A stage of a pipe, and its phase: whether it was used an odd number of times.
template <int SIZE>
struct Turn {
    int at = 0;
    u32 odd = 0;

    __device__ __forceinline__ void step() {
        if (++at == SIZE) at = 0, odd ^= 1;
    }
};
// A filter element of a chunk, and where its operands lie in both pipelines.
struct PipelineState {
    Turn<INPUT_TILES> input;
    Turn<STAGES> stage;
    int chunk, element = 0;

    __device__ __forceinline__ bool last() const { return element + 1 == elements_of(chunk); }
    __device__ __forceinline__ void step() {
        const bool over = last();
        stage.step(), ++element;
        if (over) element = 0, ++chunk, input.step();
    }
};

// Per input tile and stage: it is there; every warp is done with it.
struct Pipelines {
    u32 base, input_full, input_free, stage_full, stage_free;

    __device__ __forceinline__ explicit Pipelines(u32 base)
        : base(base), input_full(base + BARRIERS_AT),
          input_free(input_full + INPUT_TILES * BARRIER_BYTES),
          stage_full(input_free + INPUT_TILES * BARRIER_BYTES),
          stage_free(stage_full + STAGES * BARRIER_BYTES) {}
    __device__ __forceinline__ void begin() const {
        for (int i = 0; i < INPUT_TILES + STAGES; ++i) {
            const bool input = i < INPUT_TILES;
            const int at = (input ? i : i - INPUT_TILES) * BARRIER_BYTES;
            ptx::barrier_init((input ? input_full : stage_full) + at, 1);
            ptx::barrier_init((input ? input_free : stage_free) + at, WARPS);
        }
        ptx::barrier_init_fence();
    }
    __device__ __forceinline__ void wait(const PipelineState& state) const {
        if (state.element == 0)
            ptx::barrier_wait(input_full + state.input.at * BARRIER_BYTES, state.input.odd);
        ptx::barrier_wait(stage_full + state.stage.at * BARRIER_BYTES, state.stage.odd);
    }
    // This warp's products have read it.
    __device__ __forceinline__ void release(PipelineState& state) const {
        if (threadIdx.x % WARP == 0) {
            ptx::barrier_arrive(stage_free + state.stage.at * BARRIER_BYTES);
            if (state.last())
                ptx::barrier_arrive(input_free + state.input.at * BARRIER_BYTES);
        }
        state.step();
    }
};

// All that a block reads, by one thread. `plane`: positions from one plane to the next.
__device__ __forceinline__ void produce(const Pipelines& pipes, const uint4* __restrict__ images,
                                        const uint4* __restrict__ filters, int tiles, int plane) {
    PipelineState state;
    for (int n = blockIdx.x; n < tiles; n += gridDim.x) {
        const Tile tile(n);
        const size_t before = size_t(tile.column) * (EACH * ELEMENTS) + elements_of(0, tile.first);
        const uint4* from = filters + before * (VECS * BN);
        state.chunk = tile.first;
        for (int chunk = tile.first; chunk < tile.end; ++chunk) {
            const int input = state.input.at;
            ptx::barrier_wait(pipes.input_free + input * BARRIER_BYTES, state.input.odd ^ 1);
            const u32 there = pipes.input_full + input * BARRIER_BYTES;
            ptx::barrier_expect(there, INPUT_BYTES);
            for (int i = 0; i < VECS; ++i) {
                const int group = i / CHUNK * (PHASES * GROUPS) + chunk * CHUNK + i % CHUNK;
                ptx::bulk_load(pipes.base + INPUTS_AT + input * INPUT_BYTES + i * PLANE_BYTES,
                               images + size_t(group) * plane + tile.position, PLANE_BYTES, there);
            }
            for (int left = elements_of(chunk); left; --left, from += VECS * BN, state.step()) {
                const int stage = state.stage.at;
                ptx::barrier_wait(pipes.stage_free + stage * BARRIER_BYTES, state.stage.odd ^ 1);
                ptx::barrier_expect(pipes.stage_full + stage * BARRIER_BYTES, ELEMENT_BYTES);
                ptx::bulk_load(pipes.base + stage * ELEMENT_BYTES, from, ELEMENT_BYTES,
                               pipes.stage_full + stage * BARRIER_BYTES);
            }
        }
    }
}
