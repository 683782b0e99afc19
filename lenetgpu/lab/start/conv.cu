// The definition of a convolution, from -D H, W, CH, M, R, S, OH, OW, STRIDE, PAD, THREADS.
// A thread computes one output; neighbouring threads take neighbouring columns of a map.
extern "C" __global__ void __launch_bounds__(THREADS)
    per_output(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
               long long outputs) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= outputs) return;  // the last block may be too large
    const int column = i % OW;
    const int row = i / OW % OH;
    const int m = i / (OW * OH) % M;
    const long long n = i / (OW * OH * M);
    float sum = 0.0f;
    for (int c = 0; c < CH; ++c)
        for (int r = 0; r < R; ++r)
            for (int s = 0; s < S; ++s) {
                const int at = row * STRIDE + r - PAD;
                const int to = column * STRIDE + s - PAD;
                if (at < 0 || at >= H || to < 0 || to >= W) continue;
                sum += x[((n * H + at) * W + to) * CH + c] *  // [image][row][column][channel]
                       w[((r * S + s) * CH + c) * M + m];     // [r][s][channel][map]
            }
    y[((n * OH + row) * OW + column) * M + m] = sum;
}
