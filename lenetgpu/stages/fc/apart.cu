// The course report's fully_forward_tile with the ReLU after it in place (figures 4 to 6):
// fully_forward: 32x32 threads of [COLUMNS,images/32] blocks, 4 whatever M is: of fc2's 4 columns
//   of blocks 3 compute nothing. Loads are bounded by the matrix, not by its width, so that a row
//   of w is read on into the next one; what comes of it is not written.
// relu2 (3.1): THREADS = 1,024 threads a block, each writes its element back.
// Pointers are plain, as in NVVP's list. From -D K, M, TILE, COLUMNS, THREADS.

#ifdef ENTRY_fully_forward
static_assert(COLUMNS * TILE >= M, "a thread an output");

extern "C" __global__ void __launch_bounds__(TILE* TILE)
    fully_forward(const float* x, const float* w, float* y, int images) {
    __shared__ float inputs[TILE][TILE];   // [n][k]
    __shared__ float weights[TILE][TILE];  // [k][m]
    const int m = blockIdx.x % COLUMNS * TILE + threadIdx.x;
    const int n = blockIdx.x / COLUMNS * TILE + threadIdx.y;
    float sum = 0.0f;
    for (int k0 = 0; k0 < K; k0 += TILE) {
        const int across = k0 + threadIdx.x, at = (k0 + threadIdx.y) * M + m;
        inputs[threadIdx.y][threadIdx.x] =
            n < images && across < K ? x[(size_t)n * K + across] : 0.0f;
        weights[threadIdx.y][threadIdx.x] = at < K * M ? w[at] : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += inputs[threadIdx.y][k] * weights[k][threadIdx.x];
        __syncthreads();
    }
    if (n < images && m < M) y[(size_t)n * M + m] = sum;
}
#endif

#ifdef ENTRY_relu2
extern "C" __global__ void __launch_bounds__(THREADS) relu2(float* y, long long elements) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at < elements) y[at] = y[at] > 0.0f ? y[at] : 0.0f;
}
#endif
