// Convolution as a product on the tensor cores (mma.sync, sm_80): rows (GEMM M) are output pixels of all
// images one after another, columns (GEMM N) are filters, K runs over filter elements and channels;
// nothing is unrolled in memory. Operands are fp16 high and low (packed.cuh), products low*high +
// high*low + high*high. Tensor cores truncate when they add, so a chunk of K starts from zero and is
// added to fp32 registers (Ootomo and Yokota, arXiv 2203.03341). At most 2^30 rows. A block computes BM x
// BN outputs of a SPLIT-th of K from a pipeline of STAGES chunks in shared memory, filled by cp.async
// (gemm.cuh); a warp 16 x TILES_M rows, 8 x TILES_N columns.
#include "gpu/ptx/mma.cuh"
#include "gpu/ptx/shared.cuh"
#include "stages/conv/tensor/packed.cuh"

constexpr int WARP = 32;
constexpr int THREADS = WARP * WARPS_M * WARPS_N;
constexpr int WARP_ROWS = 16 * TILES_M, WARP_COLUMNS = 8 * TILES_N;
constexpr int BM = WARP_ROWS * WARPS_M, BN = WARP_COLUMNS * WARPS_N;
constexpr int ROWS_APART = 16;

#include "stages/conv/tensor/gemm.cuh"

// A warp's rows and columns of a stage: 16 rows x 16 of K an A, 8 columns x 32 two B's.
struct Operands {
    uint4 a[PARTS][STEPS][TILES_M];

    __device__ __forceinline__ static uint4 rows_at(u32 stage, int first, int vec, int part) {
        const int lane = threadIdx.x % WARP;
        return ptx::load_matrices(
            stage + swizzled(first + lane % 16, part * CHUNK + vec + lane / 16));
    }
    __device__ __forceinline__ static uint4 columns_at(u32 stage, int first, int vec, int part) {
        const int lane = threadIdx.x % WARP;
        return ptx::load_matrices(
            stage + swizzled(first + lane % 8, part * CHUNK + vec + lane / 8));
    }
    __device__ __forceinline__ void load(u32 stage, int m0) {
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
#pragma unroll
            for (int s = 0; s < STEPS; ++s)
#pragma unroll
                for (int m = 0; m < TILES_M; ++m)
                    a[part][s][m] = rows_at(stage, m0 + 16 * m, 2 * s, part);
    }
    // A chunk's products with 8 columns, small ones first, from zero.
    __device__ __forceinline__ void multiply(float (&sum)[TILES_M][4], u32 stage, int column) const {
        uint4 b[PARTS][STEPS / 2];
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
#pragma unroll
            for (int s = 0; s < STEPS; s += 2)
                b[part][s / 2] = columns_at(stage, BM + column, 2 * s, part);
        const auto of = [&b](int part, int s) {
            return s % 2 ? ptx::high2(b[part][s / 2]) : ptx::low2(b[part][s / 2]);
        };
#pragma unroll
        for (int m = 0; m < TILES_M; ++m)
            ptx::mma_start(sum[m], a[PARTS - 1][0][m], of(0, 0));
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
#pragma unroll
            for (int m = 0; m < TILES_M; ++m)
                if (s > 0) ptx::mma_add(sum[m], a[PARTS - 1][s][m], of(0, s));
            if (PARTS == 2)
#pragma unroll
                for (int m = 0; m < TILES_M; ++m) ptx::mma_add(sum[m], a[0][s][m], of(PARTS - 1, s));
        }
        if (PARTS == 2)
#pragma unroll
            for (int s = 0; s < STEPS; ++s)
#pragma unroll
                for (int m = 0; m < TILES_M; ++m) ptx::mma_add(sum[m], a[0][s][m], of(0, s));
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    tensor_mma(const uint4* __restrict__ images, const uint4* __restrict__ filters,
                   const int* __restrict__ exponents, const int* __restrict__ out_scales,
                   Held* __restrict__ y, float* __restrict__ parts, u32* __restrict__ reached,
                   int rows, const float* __restrict__ bias) {
    extern __shared__ __align__(16) unsigned char memory[];
    follow();
    const Block block;
    const int warp = threadIdx.x / WARP;
    const int warp_row = warp % WARPS_M * WARP_ROWS, warp_column = warp / WARPS_M * WARP_COLUMNS;

    const Copies copies(images, filters, block.m0, rows, block.n0);
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (block.first + i < block.end) copies.start(memory + i * STAGE_BYTES, block.first + i);
        ptx::copy_commit();
    }
    Sums sums = {};
    int stage = 0, next = STAGES - 1;
#pragma unroll 1
    for (int chunk = block.first; chunk < block.end; ++chunk) {
        ptx::copy_wait<STAGES - 2>();
        __syncthreads();
        if (chunk + STAGES - 1 < block.end)
            copies.start(memory + next * STAGE_BYTES, chunk + STAGES - 1);
        ptx::copy_commit();
        const u32 at = ptx::shared(memory) + stage * STAGE_BYTES;
        Operands operands;
        operands.load(at, warp_row);
#pragma unroll
        for (int n = 0; n < TILES_N; ++n) {
            float sum[TILES_M][4];
            operands.multiply(sum, at, warp_column + 8 * n);
#pragma unroll
            for (int m = 0; m < TILES_M; ++m)
#pragma unroll
                for (int e = 0; e < 4; ++e) sums[m][4 * n + e] += sum[m][e];
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    const Outputs out = {block.m0 + warp_row, block.n0 + warp_column, rows,
                         block.part, bias};
    out.put(sums, exponents, out_scales, y, parts, reached);
}
