// Convolution as a tiled product on the CUDA cores (product.cuh): a thread keeps TM x TN sums, its
// maps and columns in quads spread over the warp, LANES_M lanes along the maps. SUM_ROWS > 0: no
// sum takes more products; longer ones are sums of sums, which Winograd's transforms ask for.
// ORDER: along which operand the multiply-adds snake, so that few of them read a register bank
// twice. `groups` independent products (the points of a Winograd transform) follow one another.
// Layouts: x, y NCHW; w [r][s][c][M rounded up to 4]. After Chang 3.2: prefetching.
constexpr int LANES_N = 32 / LANES_M;
constexpr int BM = WARPS_M * LANES_M * TM;
constexpr int BN = WARPS_N * LANES_N * TN;
constexpr int PITCH_A = BM;
constexpr int PITCH_B = BN;
constexpr int THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;
static_assert(TM % 4 == 0 && TN % 4 == 0, "sums are read and written four at a time");
#include "stages/conv/tuned/product.cuh"

template <int T, int LANES>
__device__ __forceinline__ void fetch(float (&to)[T], const float* from) {
#pragma unroll
    for (int g = 0; g < T; g += 4) {
        const float4 v = *reinterpret_cast<const float4*>(from + g * LANES);
        to[g] = v.x, to[g + 1] = v.y, to[g + 2] = v.z, to[g + 3] = v.w;
    }
}

struct Sums {
    float sums[TM][TN];
    float totals[TM][TN];

    static __device__ __forceinline__ int part() {
        return threadIdx.x / 32 / (WARPS_M * WARPS_N);
    }
    static __device__ __forceinline__ int map() {
        return threadIdx.x / 32 % WARPS_M * (LANES_M * TM) + threadIdx.x % 32 / LANES_N * 4;
    }
    static __device__ __forceinline__ int column() {
        return threadIdx.x / 32 / WARPS_M % WARPS_N * (LANES_N * TN) + threadIdx.x % LANES_N * 4;
    }
    // Four sums; a zero added frees them from the registers that the store wants.
    __device__ __forceinline__ float4 quad(int p, int q) const {
        return make_float4(sums[p][q] + 0.0f, sums[p][q + 1] + 0.0f, sums[p][q + 2] + 0.0f,
                           sums[p][q + 3] + 0.0f);
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int e = 0; e < TM * TN; ++e) sums[e / TN][e % TN] = totals[e / TN][e % TN] = 0.0f;
    }

    __device__ __forceinline__ void multiply(const float* filters, const float* columns) {
        const float* as = filters + part() * (STEPS * PITCH_A) + map();
        const float* bs = columns + part() * (STEPS * PITCH_B) + column();
        float a[2][TM], b[2][TN];
        fetch<TM, LANES_M>(a[0], as);
        fetch<TN, LANES_N>(b[0], bs);
#pragma unroll
        for (int row = 0; row < STEPS; ++row) {
            if (row + 1 < STEPS) {
                fetch<TM, LANES_M>(a[(row + 1) % 2], as + (row + 1) * PITCH_A);
                fetch<TN, LANES_N>(b[(row + 1) % 2], bs + (row + 1) * PITCH_B);
            }
#pragma unroll
            for (int e = 0; e < TM * TN; ++e) {
                constexpr int LINE = ORDER ? TM : TN;
                const int i = e / LINE, j = i % 2 ? LINE - 1 - e % LINE : e % LINE;
                const int p = ORDER ? j : i, q = ORDER ? i : j;
                sums[p][q] = fmaf(a[row % 2][p], b[row % 2][q], sums[p][q]);
            }
        }
    }

    // Ends the sums so far: they go to the totals.
    __device__ __forceinline__ void bound() {
#pragma unroll
        for (int e = 0; e < TM * TN; ++e) {
            totals[e / TN][e % TN] += sums[e / TN][e % TN];
            sums[e / TN][e % TN] = 0.0f;
        }
    }

    __device__ __forceinline__ void finish() {
        if (SUM_ROWS == 0) return;
#pragma unroll
        for (int e = 0; e < TM * TN; ++e) sums[e / TN][e % TN] += totals[e / TN][e % TN];
    }

    __device__ __forceinline__ void store(float* out, long long columns, Tile tile) const {
#pragma unroll
        for (int p = 0; p < TM; ++p)
#pragma unroll
            for (int q = 0; q < TN; q += 4)
                store4(out, columns, tile.m0 + map() + p / 4 * (4 * LANES_M) + p % 4,
                       tile.n0 + column() + q * LANES_N, quad(p, q));
    }

    __device__ __forceinline__ void put(float4* shared) const {
#pragma unroll
        for (int p = 0; p < TM; ++p)
#pragma unroll
            for (int q = 0; q < TN; q += 4) {
                const int row = part() * BM + map() + p / 4 * (4 * LANES_M) + p % 4;
                shared[(row * BN + column() + q * LANES_N) / 4] = quad(p, q);
            }
    }
};

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, BLOCKS_PER_SM)
    conv_tuned(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
               float* __restrict__ parts, int* __restrict__ counters, int images, int groups) {
    tiled_product<Sums>(x, w, y, parts, counters, images, groups);
}
