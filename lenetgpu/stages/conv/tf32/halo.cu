// The product of wgmma.cu for few channels, from input tiles with their halo: all inputs of 64 outputs are copied
// to shared memory in their global layout, rows of all channels, with zeros around them. Rows of consecutive
// padded images follow one another, so that consecutive outputs read consecutive rows, and an input that several
// outputs read is copied once. A lane finds an input at its output's offset in the tile + the offset of index k
// of K, from a table; indices past K repeat the first, with filters of zeros. A block has BN filters in shared
// memory for all its tiles of 64 outputs, which its CONSUMERS warpgroups process in turn: some store while others
// multiply. One more warpgroup copies input tiles, STAGES deep, 16 bytes a copy where rows are multiples of that,
// else 4. TF32 high and low parts, chunks of 32 from zero, scales and the recheck in float64 are as in
// wgmma.cu. Up to 16 channels, and filters that fit.
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/cluster.cuh"
#include "gpu/ptx/registers.cuh"
#include "stages/conv/tf32/coordinates.cuh"

constexpr int WARPGROUP = 128;
constexpr int CONSUMERS = 4;  // warpgroups
constexpr int THREADS = (CONSUMERS + 1) * WARPGROUP;
constexpr int IN_TURN = CONSUMERS < STAGES ? CONSUMERS : STAGES;  // consumers that have tiles: of each an input tile is there
constexpr int LAUNCH_REGS = 96, CONSUMER_REGS = 112, PRODUCER_REGS = 32;  // registers of a thread
constexpr int BM = 64, COLUMNS = BN;
constexpr int ACROSS = MP / BN;  // tiles of the same outputs follow one another
constexpr int PLANES = PIXELWISE ? 1 : CH, COLUMN = PIXELWISE ? CH : 1;  // floats of a row's column
constexpr int LINE = W * COLUMN, LAST_COLUMN = (OW - 1) * STRIDE + S - PAD;
constexpr bool QUADS = LINE % VEC == 0;
constexpr int WIDTH = QUADS ? VEC : 1, COPIES = LINE / WIDTH;
constexpr int LEFT = (PAD * COLUMN + VEC - 1) / VEC * VEC;  // zeros of a row before its inputs
constexpr int RIGHT = LAST_COLUMN > W ? (LAST_COLUMN - W) * COLUMN : 0;
constexpr int BESIDE = PITCH - LINE;          // of a row of an input tile, [plane][row][LEFT, inputs, zeros]
constexpr int HIGH = (OH - 1) * STRIDE + R;   // rows that an image's outputs read
constexpr int LINES = PLANES * TILE_ROWS;
constexpr int TILE_BYTES = 4 * ((LINES * PITCH + VEC - 1) / VEC * VEC);
constexpr int FILTER_BYTES = 2 * VECS * BN * VEC_BYTES;  // of a chunk
constexpr int FILTERS_AT = STAGES * TILE_BYTES, OFFSETS_AT = FILTERS_AT + CHUNKS * FILTER_BYTES;
constexpr int FACTORS_AT = OFFSETS_AT + 4 * CHUNKS * CHUNK, BARRIERS_AT = FACTORS_AT + 4 * BN;
constexpr int ROW_STEPS = (OW - ((OW & -OW) < BM ? OW & -OW : BM) + BM - 1) / OW;  // from a tile's first output
constexpr int IMAGE_STEPS = PIXELS % BM ? (ROW_STEPS + (R > STRIDE ? OH - 1 : 0)) / OH : 0;

static_assert(BN == 64, "registers of a lane hold two sums");
static_assert(TILE_ROWS == ROW_STEPS * STRIDE + R + IMAGE_STEPS * (R - STRIDE), "a tile's");
static_assert(PITCH >= LEFT + LINE + RIGHT && (!QUADS || PITCH % VEC == 0), "rows are held, and aligned");
static_assert(CONSUMERS * CONSUMER_REGS + PRODUCER_REGS <= (CONSUMERS + 1) * LAUNCH_REGS, "registers fit");
static_assert(STAGES >= 2, "a tile arrives while another is read");
static_assert(MP % BN == 0 && MP >= M, "filters are padded to whole blocks");

#include "stages/conv/tf32/operand.cuh"
#include "stages/conv/tf32/outputs.cuh"
#include "stages/conv/tf32/pipeline.cuh"

static_assert(SHARED_BYTES == BARRIERS_AT + BARRIERS_BYTES, "the launcher's");

// The first and the last of a tile's outputs, and where their input tile begins.
struct Tile {
    int first, last, image, y;

    __device__ __forceinline__ Tile(int n, int outputs)
        : first(n * BM), last((first + BM < outputs ? first + BM : outputs) - 1), image(first / PIXELS),
          y(first % PIXELS / OW) {}
    // Of an output's first input: its row in the input tile, its column in the image.
    __device__ __forceinline__ int row(int output) const {
        return (output / PIXELS - image) * HIGH + (output % PIXELS / OW - y) * STRIDE;
    }
    __device__ __forceinline__ int column(int output) const { return output % OW * STRIDE - PAD; }
};

// Threads that copy a row.
__device__ constexpr int beside_each_other(int copies) {
    int threads = 1;
    while (threads < WARP && threads < copies) threads *= 2;
    return threads;
}

// Of outputs of one row only columns that they read; of two, those from the first's on and, from the left again,
// up to the last's.
__device__ __forceinline__ void copy_tile(float* to, const float* __restrict__ x, const Tile& tile) {
    constexpr int THERE = beside_each_other(COPIES);
    const int left = tile.column(tile.first), right = tile.column(tile.last) + S;
    const int begin = left >= W ? COPIES : left > 0 ? left * COLUMN / WIDTH : 0;
    const int end = right >= W ? COPIES : right > 0 ? (right * COLUMN + WIDTH - 1) / WIDTH : 0;
    const int apart = tile.last / OW - tile.first / OW;
    const bool part = apart == 0 || (apart == 1 && end < begin);
    const int first = part ? begin : 0, stop = part ? apart * COPIES + end : COPIES;
    const int lines = (tile.row(tile.last) + R) * PLANES, thread = threadIdx.x % WARPGROUP;
#pragma unroll 1
    for (int i = thread / THERE; i < lines; i += WARPGROUP / THERE) {
        const int row = i / PLANES, plane = i % PLANES, below = tile.y * STRIDE + row;
        const int y = below % HIGH - PAD;
        const bool there = y >= 0 && y < H;
        const long long image = tile.image + below / HIGH;
        const float* const from = x + (there ? image * (H * W * CH) + (plane * H + y) * LINE : 0);
        float* const row_at = to + (plane * TILE_ROWS + row) * PITCH + LEFT;
#pragma unroll 1
        for (int j = first + thread % THERE; j < stop; j += THERE) {
            const int at = (j < COPIES ? j : j - COPIES) * WIDTH;
            if constexpr (QUADS) ptx::copy16_or_zero(row_at + at, from + at, there);
            else ptx::copy4_or_zero(row_at + at, from + at, there);
        }
    }
}

// All that a block reads; `filters`: its own.
__device__ __forceinline__ void produce(unsigned char* memory, Pipeline pipe, const float* __restrict__ x,
                                        const uint4* __restrict__ filters, int tiles, int outputs) {
    if (threadIdx.x % WARPGROUP == 0) {
        ptx::barrier_expect(pipe.filters_full(), CHUNKS * FILTER_BYTES);
        for (int i = 0; i < CHUNKS; ++i)
            ptx::bulk_load(pipe.base + FILTERS_AT + i * FILTER_BYTES, filters + i * (FILTER_BYTES / VEC_BYTES),
                           FILTER_BYTES, pipe.filters_full());
    }
#pragma unroll 1
    for (int n = blockIdx.x; n < tiles; n += gridDim.x, pipe.step()) {
        ptx::barrier_wait(pipe.free(), pipe.phase ^ 1);
        copy_tile(reinterpret_cast<float*>(memory + pipe.stage * TILE_BYTES), x, Tile(n / ACROSS, outputs));
        ptx::arrive_after_copies(pipe.full());
    }
}

// What stays: zeros beside rows, and products' offsets in an input tile, [chunk][lane % 4][8], four products apart.
__device__ __forceinline__ void prepare(unsigned char* memory) {
    if constexpr (BESIDE > 0) {
        for (int i = threadIdx.x; i < STAGES * LINES * BESIDE; i += THREADS) {
            const int line = i / BESIDE, j = i % BESIDE;
            float* const tile = reinterpret_cast<float*>(memory + line / LINES * TILE_BYTES);
            tile[line % LINES * PITCH + (j < LEFT ? j : j + LINE)] = 0.0f;
        }
    }
    u32* const offsets = reinterpret_cast<u32*>(memory + OFFSETS_AT);
    for (int k = threadIdx.x; k < CHUNKS * CHUNK; k += THREADS) {
        const int own = k < K_SIZE ? k : 0, channel = PIXELWISE ? own % CH : own / (R * S);
        const FilterElement element(own);
        const int row = PIXELWISE ? element.row : channel * TILE_ROWS + element.row;
        offsets[k / CHUNK * CHUNK + k % VEC * CORE + k % CHUNK / VEC] =
            4 * (row * PITCH + element.column * COLUMN + (PIXELWISE ? channel : 0));
    }
}

struct Operand : SplitInputs {
    // By a name of its own, as in wgmma.cu.
    __device__ __forceinline__ void load(const unsigned char* memory, const u32 (&from)[2], const uint4* offsets,
                                         float (&largest)[2]) {
#pragma unroll
        for (int i = 0; i < CORE; i += VEC) {
            const uint4 four = offsets[i / VEC];
            const u32 at[VEC] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                float v[2];
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    v[h] = *reinterpret_cast<const float*>(memory + (from[h] + at[j]));
                hold(i + j, v, largest);
            }
        }
    }
};

// A consumer's tile on its way: inputs read and split, products under way, sums added.
struct Turn {
    const unsigned char* memory;
    const uint4* offsets;
    u32 filters, from[2];
    float sums[BN / 2] = {}, largest[2] = {0.0f, 0.0f};

    __device__ __forceinline__ Turn(const unsigned char* memory, const Pipeline& pipe, const Tile& tile,
                                    const Outputs& out)
        : memory(memory),
          offsets(reinterpret_cast<const uint4*>(memory + OFFSETS_AT) + threadIdx.x % 4 * (CORE / VEC)),
          filters(pipe.base + FILTERS_AT) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int own = out.row(h);  // one past the last has an offset too
            from[h] = pipe.stage * TILE_BYTES +
                      4 * (tile.row(own) * PITCH + LEFT + tile.column(own) * COLUMN);
            ptx::here(from[h]);
        }
    }
    __device__ __forceinline__ void add() {
        float sum[BN / 2];
        Operand inputs;
        inputs.load(memory, from, offsets, largest);
        multiply(sum, inputs, filters);
        ptx::wgmma_wait<0>();
        ptx::settle(sum);
#pragma unroll
        for (int i = 0; i < BN / 2; ++i) sums[i] += sum[i];
        offsets += CHUNK / VEC, filters += FILTER_BYTES;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    tf32_halo(const float* __restrict__ x, const uint4* __restrict__ filters,
               const float* __restrict__ factors, const float* __restrict__ bias,
               const float* __restrict__ w, float* __restrict__ y, int outputs) {
    extern __shared__ __align__(128) unsigned char memory[];
    Pipeline pipe(ptx::shared(memory));
    const int group = __shfl_sync(~0u, int(threadIdx.x) / WARPGROUP, 0);
    const int tiles = (outputs + BM - 1) / BM * ACROSS, across = blockIdx.x % ACROSS;
    float* const held = reinterpret_cast<float*>(memory + FACTORS_AT);
    if (threadIdx.x == 0) pipe.begin(WARPGROUP, WARPGROUP / WARP);
    prepare(memory);
    ptx::wait_for_grid();
    ptx::start_next_grid();
    if (threadIdx.x < BN) held[threadIdx.x] = factors[across * BN + threadIdx.x];
    __syncthreads();
    if (group == CONSUMERS) {
        ptx::fewer_registers<PRODUCER_REGS>();
        produce(memory, pipe, x, filters + size_t(across) * CHUNKS * (FILTER_BYTES / VEC_BYTES), tiles, outputs);
        return;
    }
    ptx::more_registers<CONSUMER_REGS>();
    if (group >= IN_TURN) return;
    ptx::barrier_wait(pipe.filters_full(), 0);
    pipe.step(group);
#pragma unroll 1
    for (int n = blockIdx.x + group * gridDim.x; n < tiles; n += IN_TURN * gridDim.x, pipe.step(IN_TURN)) {
        const Tile tile(n / ACROSS, outputs);
        const int warp = threadIdx.x % WARPGROUP / WARP;
        const Outputs out = {tile.first + 16 * warp, across * BN, outputs};
        ptx::barrier_wait(pipe.full(), pipe.phase);
        Turn turn(memory, pipe, tile, out);
#pragma unroll 1
        for (int left = CHUNKS + (outputs < 0); left > 0; --left) turn.add();  // ptxas unrolls few known turns
        if (threadIdx.x % WARP == 0) ptx::barrier_arrive(pipe.free());
        out.put(turn.sums, turn.largest, held, bias, x, w, y);
    }
}
