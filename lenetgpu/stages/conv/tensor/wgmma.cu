// The product of mma.cu on Hopper's wgmma (sm_90a): a warpgroup computes 64 x TILES_M rows x BN
// columns, both operands where the copies laid them in shared memory (gemm.cuh), as swizzled rows of
// 128 bytes. A chunk's sums start from zero; while the tensor cores fill the second of two, the first is
// added to fp32 registers. At most 2^30 rows.
#include "gpu/ptx/wgmma_shared.cuh"
#include "stages/conv/tensor/packed.cuh"

constexpr int WARP = 32, WARPGROUP = 128;
constexpr int THREADS = WARPGROUP * GROUPS_M;
constexpr int GROUP_ROWS = 64 * TILES_M;
constexpr int BM = GROUP_ROWS * GROUPS_M, BN = 8 * TILES_N;
constexpr int ROWS_APART = 64;

#include "stages/conv/tensor/gemm.cuh"

constexpr int PREFETCHED = STAGES / 2 - 1;    // pairs of chunks in flight beside the one in use
constexpr int STEP = 2 * VEC_BYTES / 16;      // of a descriptor, 16 along K
constexpr int LOW = CHUNK * VEC_BYTES / 16;  // from high to low parts

static_assert(STAGES % 2 == 0 && PREFETCHED >= 1, "a pair is read while the next one lands");
static_assert(STAGE_BYTES % 1024 == 0, "swizzled rows repeat after 1,024 bytes");

// A chunk's products, small ones first, from zero.
__device__ __forceinline__ void multiply(Sums& sum, u32 stage, int group) {
    const u64 column = ptx::swizzled(stage + BM * ROW_BYTES);
    ptx::wgmma_fence();
#pragma unroll
    for (int m = 0; m < TILES_M; ++m) {
        const u64 row = ptx::swizzled(stage + (group * GROUP_ROWS + m * 64) * ROW_BYTES);
        constexpr int OTHER = PARTS == 2 ? LOW : 0;
        ptx::wgmma<false>(sum[m], row + OTHER, column);
#pragma unroll
        for (int s = 1; s < STEPS; ++s) ptx::wgmma<true>(sum[m], row + OTHER + s * STEP, column + s * STEP);
        if (PARTS == 1) continue;
#pragma unroll
        for (int s = 0; s < STEPS; ++s) ptx::wgmma<true>(sum[m], row + s * STEP, column + LOW + s * STEP);
#pragma unroll
        for (int s = 0; s < STEPS; ++s) ptx::wgmma<true>(sum[m], row + s * STEP, column + s * STEP);
    }
    ptx::wgmma_commit();
}
__device__ __forceinline__ void add(Sums& sums, Sums& sum) {
#pragma unroll
    for (int m = 0; m < TILES_M; ++m) {
        ptx::settle(sum[m]);
#pragma unroll
        for (int i = 0; i < 4 * TILES_N; ++i) sums[m][i] += sum[m][i];
    }
}

// Pairs of chunks on their way; the last may have one.
struct Pipeline {
    unsigned char* memory;
    int chunk, end, stage = 0;

    __device__ __forceinline__ void start(const Copies& copies, int pairs) const {
        const int at = stage + 2 * pairs, to = at < STAGES ? at : at - STAGES;
#pragma unroll
        for (int i = 0; i < 2; ++i)
            if (chunk + 2 * pairs + i < end)
                copies.start(memory + (to + i) * STAGE_BYTES, chunk + 2 * pairs + i);
        ptx::copy_commit();
    }
    // Every thread's copies of this pair are there, and the pair before is multiplied.
    __device__ __forceinline__ u32 wait() const {
        ptx::copy_wait<PREFETCHED - 1>();
        ptx::async_fence();
        __syncthreads();
        return ptx::shared(memory) + stage * STAGE_BYTES;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    tensor_wgmma(const uint4* __restrict__ images, const uint4* __restrict__ filters,
                 const int* __restrict__ exponents, const int* __restrict__ out_scales,
                 Held* __restrict__ y, float* __restrict__ parts, u32* __restrict__ reached,
                 int rows, const float* __restrict__ bias) {
    extern __shared__ __align__(1024) unsigned char memory[];
    follow();
    const Block block;
    const int group = __shfl_sync(~0u, int(threadIdx.x) / WARPGROUP, 0);

    const Copies copies(images, filters, block.m0, rows, block.n0);
    Pipeline pipe = {memory, block.first, block.end};
#pragma unroll
    for (int i = 0; i < PREFETCHED; ++i) pipe.start(copies, i);
    Sums sums = {};
    for (; pipe.chunk + 1 < pipe.end; pipe.chunk += 2) {
        const u32 stage = pipe.wait();
        Sums even, odd;
        multiply(even, stage, group);
        multiply(odd, stage + STAGE_BYTES, group);
        pipe.start(copies, PREFETCHED);
        ptx::wgmma_wait<1>();
        add(sums, even);
        ptx::wgmma_wait<0>();
        add(sums, odd);
        pipe.stage = pipe.stage + 2 == STAGES ? 0 : pipe.stage + 2;
    }
    if (pipe.chunk < pipe.end) {
        Sums last;
        multiply(last, pipe.wait(), group);
        ptx::wgmma_wait<0>();
        add(sums, last);
    }
    const int warp_row = group * GROUP_ROWS + threadIdx.x % WARPGROUP / WARP * 16;
    const Outputs out = {block.m0 + warp_row, block.n0, rows, block.part, bias};
    out.put(sums, exponents, out_scales, y, parts, reached);
}
