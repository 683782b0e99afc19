// Convolution by Hopper's wgmma (sm_90a) in which all filter elements read one input tile with its halo. Split
// images are planes of 8 channels [part][phase][CP / 8][position] whose positions run over the padded rows of
// all images, PITCH a row, SLOT an image. Filter element (r, s) reads the input tile r * PITCH + s positions
// further on, so one tile of CHUNK planes serves all elements, or with a stride those of its phase (r and s
// modulo the stride). Positions that are not outputs are computed and dropped. Rows of a product are filters,
// columns positions. A persistent block computes BN filters x BM positions of a SPLIT-th of the channels: two
// warpgroups multiply WIDE positions each; a thread of a third copies input tiles and the filters of an element,
// [M / BN][phase][chunk][element][part][CHUNK][BN][8], by bulk copies, INPUT_TILES and STAGES deep. A chunk's
// sums of an element start from zero and are added to fp32 registers while the next element's are computed.
// After AT_ONCE elements these are saved to `saved` and restart (SAVES), which bounds consecutive roundings.
// WINOGRAD: phases are the transform points of F(2, 3) along rows (Lavin and Gray, arXiv 1509.09308, section
// 4.1, in one dimension), a position is two outputs: the products at a point are added to one or both of them.
#include "gpu/ptx/registers.cuh"
#include "stages/conv/tensor/halo.cuh"
#include "stages/conv/tensor/wide.cuh"

// Where the filters and inputs of a filter element begin, as wgmma is told.
struct Operands {
    static constexpr int FILTER_STEP = 2 * BN, INPUT_STEP = 2 * INPUT_TILE;  // 16 along K
    static constexpr int FILTER_LOW = CHUNK * BN, INPUT_LOW = CHUNK * INPUT_TILE;
    u64 row, column;

    __device__ __forceinline__ Operands(const Pipelines& pipes, const PipelineState& state, int group)
        : row(ptx::operand(pipes.base + state.stage.at * ELEMENT_BYTES, BN * VEC_BYTES, VEC * VEC_BYTES)) {
        const int across = elements_across(state.chunk);
        const int shift = group * WIDE + state.element / across * PITCH + state.element % across;
        column = ptx::operand(
            pipes.base + INPUTS_AT + state.input.at * INPUT_BYTES + shift * VEC_BYTES, PLANE_BYTES,
            VEC * VEC_BYTES);
    }
};
// Of a filter element's products of a chunk the N-th, small ones first, from zero.
constexpr int PRODUCTS = (PARTS == 2 ? 3 : 1) * STEPS;
template <int N>
__device__ __forceinline__ void product(float (&sum)[WIDE / 2], const Operands& of) {
    constexpr bool LOW_FILTER = PARTS == 2 && N < STEPS, LOW_INPUT = N / STEPS == 1;
    ptx::wgmma<(N > 0)>(
        sum, of.row + (LOW_FILTER ? of.FILTER_LOW : 0) + N % STEPS * of.FILTER_STEP,
        of.column + (LOW_INPUT ? of.INPUT_LOW : 0) + N % STEPS * of.INPUT_STEP);
}
template <int N = 0>
__device__ __forceinline__ void multiply(float (&sum)[WIDE / 2], const Operands& of) {
    product<N>(sum, of);
    if constexpr (N + 1 < PRODUCTS) multiply<N + 1>(sum, of);
}
// Adds a filter element's sums where at most PENDING elements after it are under way; a loop that ends with one is
// not serialised by ptxas.
template <int PENDING>
__device__ __forceinline__ void finish(Sums& sums, float (&sum)[WIDE / 2], const Pipelines& pipes,
                                       PipelineState& state) {
    ptx::wgmma_wait<PENDING>();
    const int point = state.chunk / EACH;
    pipes.release(state);
    ptx::settle(sum);
    if (!WINOGRAD || point < 3)  // of the first: points 0, 1 and 2
#pragma unroll
        for (int i = 0; i < WIDE / 2; ++i) sums[0][i] += sum[i];
    if (WINOGRAD && point > 0) {  // of the second: 1, less 2, and 3
        const float sign = point == 2 ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < WIDE / 2; ++i) sums[ACROSS_X - 1][i] += sign * sum[i];
    }
}

// The next `elements` filter elements, one under way while the one before it is added.
__device__ __forceinline__ void add(Sums& sums, const Pipelines& pipes, PipelineState& to_read,
                                    PipelineState& to_release, int group, int elements) {
    float one[WIDE / 2], two[WIDE / 2];
    const auto start = [&](float (&sum)[WIDE / 2]) {
        pipes.wait(to_read);
        const Operands of(pipes, to_read, group);
        ptx::wgmma_fence();
        multiply(sum, of), to_read.step();
        ptx::wgmma_commit();
    };
    start(one);
#pragma unroll 1
    for (; elements > 2; elements -= 2) {
        start(two);
        finish<1>(sums, one, pipes, to_release);
        start(one);
        finish<1>(sums, two, pipes, to_release);
    }
    if (elements > 1) {
        start(two);
        finish<1>(sums, one, pipes, to_release);
        finish<0>(sums, two, pipes, to_release);
    } else {
        finish<0>(sums, one, pipes, to_release);
    }
}

// A thread's sums of the filter elements so far, which only it reads.
struct Aside {
    static constexpr int THREADS_APART = CONSUMERS * WARPGROUP, OUTPUT_APART = FOURS * THREADS_APART;
    float4* at;

    __device__ __forceinline__ Aside(float* saved, int thread)
        : at(reinterpret_cast<float4*>(saved) + size_t(blockIdx.x) * (SAVED / 4) + thread) {}
    __device__ __forceinline__ void add_to(Sums& sums) const {
#pragma unroll
        for (int o = 0; o < ACROSS_X; ++o)
#pragma unroll
            for (int i = 0; i < FOURS; ++i) {
                const float4 four = __ldcg(at + o * OUTPUT_APART + i * THREADS_APART);
                sums[o][4 * i] += four.x, sums[o][4 * i + 1] += four.y;
                sums[o][4 * i + 2] += four.z, sums[o][4 * i + 3] += four.w;
            }
    }
    // Instead of what was there, to which they are added unless it is the `first`; they are zero then.
    __device__ __forceinline__ void save(Sums& sums, bool first) const {
        if (!first) add_to(sums);
#pragma unroll
        for (int o = 0; o < ACROSS_X; ++o) {
#pragma unroll
            for (int i = 0; i < FOURS; ++i)
                __stcg(at + o * OUTPUT_APART + i * THREADS_APART,
                       {sums[o][4 * i], sums[o][4 * i + 1], sums[o][4 * i + 2], sums[o][4 * i + 3]});
#pragma unroll
            for (int i = 0; i < WIDE / 2; ++i) sums[o][i] = 0.0f;
        }
    }
};

// `saved`: SAVED floats a block where sums are saved; then parts.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    tensor_halo(const uint4* __restrict__ images, const uint4* __restrict__ filters,
                const int* __restrict__ exponents, const int* __restrict__ out_scales,
                Held* __restrict__ y, float* __restrict__ saved, u32* __restrict__ reached,
                int count, int plane, const float* __restrict__ bias) {
    extern __shared__ __align__(128) unsigned char memory[];
    const Pipelines pipes(ptx::shared(memory));
    const int group = __shfl_sync(~0u, int(threadIdx.x) / WARPGROUP, 0);
    const int tiles = Tile::count(count);
    if (threadIdx.x == 0) pipes.begin();
    __syncthreads();
    follow();
    if (group == CONSUMERS) {
        ptx::fewer_registers<PRODUCER_REGS>();
        if (threadIdx.x % WARPGROUP == 0) produce(pipes, images, filters, tiles, plane);
        return;
    }
    ptx::more_registers<CONSUMER_REGS>();
    PipelineState to_read, to_release;
    const Aside aside(saved, threadIdx.x);
    float* parts = saved + (SAVES ? size_t(gridDim.x) * SAVED : 0);
#pragma unroll 1
    for (int n = blockIdx.x; n < tiles; n += gridDim.x) {
        const Tile tile(n);
        Sums sums = {};
        int left = elements_of(tile.first, tile.end) + (plane < 0);  // ptxas unrolls few known turns
        to_read.chunk = to_release.chunk = tile.first;
        if constexpr (SAVES) {
            const int elements = left;
#pragma unroll 1
            for (;; left -= AT_ONCE) {
                add(sums, pipes, to_read, to_release, group, min(left, AT_ONCE));
                if (left <= AT_ONCE) break;
                aside.save(sums, left == elements);
            }
            if (elements > AT_ONCE) aside.add_to(sums);
        } else {
            add(sums, pipes, to_read, to_release, group, left);
        }
        const int warp = threadIdx.x % WARPGROUP / WARP;
        const Outputs out = {tile.position + group * WIDE, tile.column * BN + warp * 16, count};
        float* part = parts + (long long)tile.part * count * IMAGE_OUTPUTS;
        out.put(sums, exponents, out_scales, bias, reinterpret_cast<Out::Held*>(SPLIT > 1 ? (void*)part : y), reached,
                reinterpret_cast<float*>(memory + LINES_AT + threadIdx.x / WARP * LINES_BYTES));
    }
}
