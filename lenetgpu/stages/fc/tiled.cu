// y[n][m] = relu?(sum over k of x[n][k] * w[k][m]): the report's fully_forward_tile (tables 5-8).
// A TILE x TILE block computes as many outputs, one per thread, from TILE-deep tiles of x and w
// in shared memory. From -D K, M, RELU, TILE.

extern "C" __global__ void __launch_bounds__(TILE* TILE)
    fully_forward_tile(const float* __restrict__ x, const float* __restrict__ w,
                       float* __restrict__ y, int images) {
    __shared__ float xs[TILE][TILE];  // [n][k]
    __shared__ float ws[TILE][TILE];  // [k][m]
    constexpr int COLUMN_TILES = (M + TILE - 1) / TILE;
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int m = blockIdx.x % COLUMN_TILES * TILE + tx;
    const int n = blockIdx.x / COLUMN_TILES * TILE + ty;
    float sum = 0.0f;
    for (int k0 = 0; k0 < K; k0 += TILE) {
        xs[ty][tx] = n < images && k0 + tx < K ? x[(size_t)n * K + k0 + tx] : 0.0f;
        ws[ty][tx] = k0 + ty < K && m < M ? w[(k0 + ty) * M + m] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE; ++k) sum += xs[ty][k] * ws[k][tx];
        __syncthreads();
    }
    if (n < images && m < M) y[(size_t)n * M + m] = RELU ? fmaxf(sum, 0.0f) : sum;
}
