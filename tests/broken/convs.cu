// A convolution of (images, H, W, C) by filters (R, S, C, M), one output per thread.

extern "C" __global__ void conv(const float* x, const float* w, float* y, int images) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= images * OH * OW * M) return;
    const int m = i % M, ox = i / M % OW, oy = i / M / OW % OH, n = i / M / OW / OH;
    float sum = 0.0f;
    for (int r = 0; r < R; ++r)
        for (int s = 0; s < S; ++s) {
            const int iy = oy * STRIDE + r - PAD, ix = ox * STRIDE + s - PAD;
            if (iy < 0 || iy >= H || ix < 0 || ix >= W) continue;
            for (int c = 0; c < C; ++c)
                sum += x[((n * H + iy) * W + ix) * C + c] * w[((r * S + s) * C + c) * M + m];
        }
    y[i] = sum;
}
