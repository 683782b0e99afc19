// Step 2, order: neighbouring threads take neighbouring maps, from -D H, W, CH, M, R, S, THREADS.
// A warp then reads 32 filter values side by side, one input value for all, and writes 32 outputs
// side by side: a few wide accesses where step 1 made 32 narrow ones.
constexpr int OH = H - R + 1;
constexpr int OW = W - S + 1;

extern "C" __global__ void __launch_bounds__(THREADS)
    maps_first(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
               long long outputs) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= outputs) return;
    const int m = i % M;
    const int column = i / M % OW;
    const int row = i / (M * OW) % OH;
    const long long n = i / (M * OW * OH);
    float sum = 0.0f;
    for (int r = 0; r < R; ++r)
        for (int s = 0; s < S; ++s)
            for (int c = 0; c < CH; ++c)
                sum += x[((n * H + row + r) * W + column + s) * CH + c] *
                       w[((r * S + s) * CH + c) * M + m];
    y[i] = sum;
}
