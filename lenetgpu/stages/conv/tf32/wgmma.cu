// Convolution at fp32 accuracy by Hopper's wgmma (sm_90a) in one launch: three products of TF32 high and low
// into which inputs are split in registers, on their way from shared memory to the tensor cores. GEMM rows
// (M) are outputs of all images one after another, columns (N) filters, K filter elements of channels
// (NCHW) or channels of elements (NHWC). A block computes BM outputs x BN filters at a time and takes tiles in
// turn: two consumer warpgroups multiply 64 outputs each; a producer gathers inputs, zeros where there is none, 16 bytes
// a copy where four neighbours along K (NHWC) or of a map's pixels (NCHW, 1x1) are, else 4, and one of
// its threads copies filters, [M / BN][chunk][part][8][BN][4], in bulk, STAGES chunks of 32 ahead; FILTERS_HELD:
// once, for all tiles, which are of the same filters then. A chunk's sums start from zero and are added to
// fp32 registers. Filters are scaled by powers of two to stay below 4 (`factors` undo it). Rows of outputs
// so small, or not finite, that TF32 may be inaccurate are recomputed in float64.
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/cluster.cuh"
#include "gpu/ptx/registers.cuh"
#include "stages/conv/tf32/coordinates.cuh"

constexpr int WARPGROUP = 128;
constexpr int CONSUMERS = 2;                  // warpgroups
constexpr int THREADS = (CONSUMERS + 1) * WARPGROUP;
constexpr int CONSUMER_REGS = 232, PRODUCER_REGS = 40;  // registers of a thread
constexpr int ROWS = 64, BM = CONSUMERS * ROWS, COLUMNS = BN;
constexpr bool SKIPS = !PIXELWISE && POINTWISE && STRIDE == 2 && W % 4 == 0;  // every other of a copy
constexpr bool QUADS = PIXELWISE ? CH % 4 == 0 : SKIPS || (POINTWISE && STRIDE == 1 && PIXELS % 4 == 0);
constexpr int NEXT_ROW =                      // floats; [row][k] of pixels, [k][row] of maps; few bank conflicts
    PIXELWISE ? CHUNK + (NEIGHBOURS && !QUADS ? 2 : 4) : SKIPS ? 2 : 1;
constexpr int NEXT_K = PIXELWISE ? 1 : BM * NEXT_ROW + 8;
constexpr int INPUT_BYTES = 4 * (PIXELWISE ? BM * NEXT_ROW : CHUNK * NEXT_K);
constexpr int PART_BYTES = VECS * BN * VEC_BYTES, FILTER_BYTES = 2 * PART_BYTES;
constexpr int STAGE_BYTES = INPUT_BYTES + (FILTERS_HELD ? 0 : FILTER_BYTES);
constexpr int FILTERS_AT = STAGES * STAGE_BYTES;  // held ones
constexpr int FACTORS_AT = FILTERS_AT + (FILTERS_HELD ? CHUNKS * FILTER_BYTES : 0);
constexpr int BARRIERS_AT = FACTORS_AT + 2 * CONSUMERS * BN * 4;    // two turns' of each warpgroup
constexpr int WARPS = CONSUMERS * WARPGROUP / WARP;
constexpr int ACROSS = MP / BN;               // tiles of the same rows follow one another

static_assert(WARPGROUP == BM, "a thread that gathers has a row");
static_assert(BN == 64 || BN == 128, "products are there");
static_assert(STAGE_BYTES % VEC_BYTES == 0 && INPUT_BYTES % VEC_BYTES == 0, "bulk copies are aligned");
static_assert(CONSUMERS * CONSUMER_REGS + PRODUCER_REGS <= 512, "registers fit");
static_assert(MP % BN == 0 && MP >= M, "filters are padded to whole blocks");

#include "stages/conv/tf32/gather.cuh"
#include "stages/conv/tf32/operand.cuh"
#include "stages/conv/tf32/outputs.cuh"
#include "stages/conv/tf32/pipeline.cuh"

static_assert(SHARED_BYTES == BARRIERS_AT + BARRIERS_BYTES, "the launcher's");

__device__ __forceinline__ u32 filters_at(const Pipeline& pipe, int chunk) {
    return FILTERS_HELD ? pipe.base + FILTERS_AT + chunk * FILTER_BYTES
                        : pipe.base + pipe.stage * STAGE_BYTES + INPUT_BYTES;
}

// The row of a tile whose corner a thread keeps: its own, or the first of those that it copies at once.
constexpr int AT_ONCE = QUADS && !PIXELWISE ? VEC / NEXT_ROW : 1;
__device__ __forceinline__ int corner_row() {
    return threadIdx.x % (BM / AT_ONCE) * AT_ONCE;
}
// A chunk: of maps a lane has a row, or some, and goes through products; of pixels it has a product, or
// four, and goes through its warp's rows.
__device__ __forceinline__ void gather(float* to, const float* __restrict__ x, const Corner& own,
                                       int chunk) {
    constexpr int WIDTH = QUADS ? VEC : 1;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x % WARPGROUP / WARP;
    if constexpr (PIXELWISE) {
        const int k = lane * WIDTH % CHUNK, before = lane * WIDTH / CHUNK;
        const FilterElement element(chunk * CHUNK + k);
#pragma unroll 8
        for (int i = before; i < WARP; i += WARP * WIDTH / CHUNK)
            copy_input(to + (warp * WARP + i) * NEXT_ROW + k, x, of_lane(own, i), element);
    } else {
#pragma unroll 8
        for (int i = int(threadIdx.x) % WARPGROUP * AT_ONCE / BM; i < CHUNK; i += AT_ONCE)
            copy_input(to + i * NEXT_K + corner_row() * NEXT_ROW, x, own, FilterElement(chunk * CHUNK + i));
    }
}

// Filters of a chunk, by one thread; `from`: those of the block's first chunk.
__device__ __forceinline__ void load_filters(const Pipeline& pipe, const uint4* __restrict__ from, int chunk,
                                             u32 there) {
    ptx::bulk_load(filters_at(pipe, chunk), from + size_t(chunk) * (FILTER_BYTES / VEC_BYTES), FILTER_BYTES,
                   there);
}

// All that a block reads.
__device__ __forceinline__ void produce(unsigned char* memory, Pipeline pipe, const float* __restrict__ x,
                                        const uint4* __restrict__ filters, int tiles, int outputs) {
    constexpr size_t BLOCK_VECS = size_t(CHUNKS) * (FILTER_BYTES / VEC_BYTES);
    const bool first = threadIdx.x % WARPGROUP == 0;
    if (FILTERS_HELD && first) {
        ptx::barrier_expect(pipe.filters_full(), CHUNKS * FILTER_BYTES);
        for (int chunk = 0; chunk < CHUNKS; ++chunk)
            load_filters(pipe, filters + blockIdx.x % ACROSS * BLOCK_VECS, chunk, pipe.filters_full());
    }
    for (int n = blockIdx.x; n < tiles; n += gridDim.x) {
        const Corner own(n / ACROSS * BM + corner_row(), outputs);
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; ++chunk, pipe.step()) {
            ptx::barrier_wait(pipe.free(), pipe.phase ^ 1);
            if (!FILTERS_HELD && first) {
                ptx::barrier_expect(pipe.full(), FILTER_BYTES);
                load_filters(pipe, filters + n % ACROSS * BLOCK_VECS, chunk, pipe.full());
            }
            gather(reinterpret_cast<float*>(memory + pipe.stage * STAGE_BYTES), x, own, chunk);
            ptx::arrive_after_copies(pipe.full());
        }
    }
}

struct Operand : SplitInputs {
    // Loads are by names of their own: copies and they are ordered by mbarriers, which racecheck does not
    // follow (scripts/sanitize.py).
    __device__ __forceinline__ void load(const float* inputs, int first, float (&largest)[2]) {
        const int lane = threadIdx.x % WARP, row = first + (NEIGHBOURS ? 2 : 1) * (lane / 4);
        const float* from = inputs + row * NEXT_ROW + lane % 4 * NEXT_K;
#pragma unroll
        for (int i = 0; i < 2 * STEPS; ++i) {
            const float* at = from + 4 * i * NEXT_K;
            float v[2];
            if constexpr (NEIGHBOURS && SKIPS) {
                const float4 four = *reinterpret_cast<const float4*>(at);
                v[0] = four.x, v[1] = four.z;
            } else if constexpr (NEIGHBOURS && !PIXELWISE) {
                const float2 both = *reinterpret_cast<const float2*>(at);
                v[0] = both.x, v[1] = both.y;
            } else {
                v[0] = at[0], v[1] = at[NEXT_ROW * (NEIGHBOURS ? 1 : 8)];
            }
            hold(i, v, largest);
        }
    }
};

// A tile's chunks on their way: inputs read and split, products under way, sums added. Two chunks'
// products are under way at once where registers hold two sums.
struct Turn {
    static constexpr bool TWO = BN == 64;
    const unsigned char* memory;
    Pipeline to_read, to_multiply, to_release;
    int first, chunk = 0;
    float sums[BN / 2] = {}, largest[2] = {0.0f, 0.0f};

    __device__ __forceinline__ Turn(const unsigned char* memory, const Pipeline& pipe, int first)
        : memory(memory), to_read(pipe), to_multiply(pipe), to_release(pipe), first(first) {}
    __device__ __forceinline__ void load(Operand& to) {
        ptx::barrier_wait(to_read.full(), to_read.phase);
        to.load(reinterpret_cast<const float*>(memory + to_read.stage * STAGE_BYTES), first, largest);
        to_read.step();
    }
    __device__ __forceinline__ void start(float (&sum)[BN / 2], const Operand& inputs) {
        multiply(sum, inputs, filters_at(to_multiply, chunk++));
        to_multiply.step();
    }
    // Where at most PENDING chunks after it are under way; a loop that ends with it is not
    // serialised by ptxas.
    template <int PENDING>
    __device__ __forceinline__ void finish(float (&sum)[BN / 2]) {
        ptx::wgmma_wait<PENDING>();
        if (threadIdx.x % WARP == 0) ptx::barrier_arrive(to_release.free());
        to_release.step();
        ptx::settle(sum);
#pragma unroll
        for (int i = 0; i < BN / 2; ++i) sums[i] += sum[i];
    }
    __device__ __forceinline__ void run(int left) {
        float one[BN / 2], two[BN / 2];
        Operand even, odd;
        load(even);
        if constexpr (TWO) {
            start(one, even);
#pragma unroll 1
            for (; left > 2; left -= 2) {
                load(odd), start(two, odd), finish<1>(one);
                load(even), start(one, even), finish<1>(two);
            }
            if (left > 1) {
                load(odd), start(two, odd), finish<1>(one);
                finish<0>(two);
            } else {
                finish<0>(one);
            }
        } else {
#pragma unroll 1
            for (; left > 2; left -= 2) {
                start(one, even), load(odd), finish<0>(one);
                start(one, odd), load(even), finish<0>(one);
            }
            start(one, even);
            if (left > 1) {
                load(odd), finish<0>(one);
                start(one, odd);
            }
            finish<0>(one);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    tf32_wgmma(const float* __restrict__ x, const uint4* __restrict__ filters,
               const float* __restrict__ factors, const float* __restrict__ bias,
               const float* __restrict__ w, float* __restrict__ y, int outputs) {
    extern __shared__ __align__(128) unsigned char memory[];
    Pipeline pipe(ptx::shared(memory));
    const int group = __shfl_sync(~0u, int(threadIdx.x) / WARPGROUP, 0);
    const int tiles = (outputs + BM - 1) / BM * ACROSS;
    if (threadIdx.x == 0) pipe.begin(WARPGROUP + !FILTERS_HELD, WARPS);
    __syncthreads();
    ptx::wait_for_grid();
    ptx::start_next_grid();
    if (group == CONSUMERS) {
        ptx::fewer_registers<PRODUCER_REGS>();
        produce(memory, pipe, x, filters, tiles, outputs);
        return;
    }
    ptx::more_registers<CONSUMER_REGS>();
    const int first = int(threadIdx.x) / WARP * 16;
    float* const slots = reinterpret_cast<float*>(memory + FACTORS_AT) + 2 * BN * group;
    if (FILTERS_HELD) ptx::barrier_wait(pipe.filters_full(), 0);
    bool odd = false;
#pragma unroll 1
    for (int n = blockIdx.x; n < tiles; n += gridDim.x, odd = !odd) {
        const int filter = n % ACROSS * BN, thread = threadIdx.x % WARPGROUP;
        float* const held = slots + BN * odd;
        if (thread < BN / 4) ptx::copy16(held + 4 * thread, factors + filter + 4 * thread);
        ptx::copy_commit();
        Turn turn(memory, pipe, first);
        turn.run(CHUNKS + (outputs < 0));  // ptxas unrolls few known turns
        pipe = turn.to_release;
        ptx::copy_wait<0>();
        ptx::sync(1 + group, WARPGROUP);
        const Outputs out = {n / ACROSS * BM + first, filter, outputs};
        out.put(turn.sums, turn.largest, held, bias, x, w, y);
    }
}
