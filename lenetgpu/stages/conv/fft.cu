// Convolution by FFT (report, section 2.4): pad, transform (library), multiply, transform back
// (library), crop.
// spectrum_product: OUT[n][m][f] = sum over c of X[n][c][f] * conj(F[c][m][f]); a thread keeps
//   IMAGES_EACH x MAPS_EACH sums for one frequency, threads of a warp on neighbouring f.
#include "stages/conv/shape.cuh"

#ifdef ENTRY_pad_image
extern "C" __global__ void __launch_bounds__(THREADS)
    pad_image(const float* __restrict__ x, float* __restrict__ padded, long long elements) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= elements) return;
    const int col = i % FFT_W - PAD, row = i / FFT_W % FFT_H - PAD, c = i / FFT_W / FFT_H % CH;
    const size_t n = i / ((long long)FFT_W * FFT_H * CH);
    const bool inside = row >= 0 && row < H && col >= 0 && col < W;
    padded[i] = inside ? x[offset<READS, H, W, CH>(n, row, col, c)] : 0.0f;
}
#endif

#ifdef ENTRY_crop_image
extern "C" __global__ void __launch_bounds__(THREADS)
    crop_image(const float* __restrict__ maps, float* __restrict__ y, long long elements) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= elements) return;
    const size_t n = i / (PIXELS * M);
    const Index at = locate<WRITES, OH, OW, M>(i % (PIXELS * M));
    const size_t from = ((n * M + at.c) * FFT_H + at.y * STRIDE) * FFT_W + at.x * STRIDE;
    y[i] = maps[from] * (1.0f / (FFT_H * FFT_W));
}
#endif

#ifdef ENTRY_spectrum_product
constexpr int FREQUENCIES = FFT_H * (FFT_W / 2 + 1);
constexpr int FREQUENCY_BLOCKS = (FREQUENCIES + THREADS - 1) / THREADS;
constexpr int MAP_GROUPS = (M + MAPS_EACH - 1) / MAPS_EACH;

extern "C" __global__ void __launch_bounds__(THREADS)
    spectrum_product(const float2* __restrict__ x, const float2* __restrict__ filters,
                     float2* __restrict__ out, int images) {
    const int f = blockIdx.x % FREQUENCY_BLOCKS * THREADS + threadIdx.x;
    const int m0 = blockIdx.x / FREQUENCY_BLOCKS % MAP_GROUPS * MAPS_EACH;
    const size_t n0 = (size_t)(blockIdx.x / FREQUENCY_BLOCKS / MAP_GROUPS) * IMAGES_EACH;
    if (f >= FREQUENCIES) return;
    float2 sums[IMAGES_EACH][MAPS_EACH] = {};
    for (int c = 0; c < CH; ++c) {
        float2 a[IMAGES_EACH], b[MAPS_EACH];
#pragma unroll
        for (int i = 0; i < IMAGES_EACH; ++i)
            a[i] = n0 + i < images ? x[((n0 + i) * CH + c) * FREQUENCIES + f] : float2{0, 0};
#pragma unroll
        for (int j = 0; j < MAPS_EACH; ++j)
            b[j] = m0 + j < M ? filters[((size_t)c * M + m0 + j) * FREQUENCIES + f] : float2{0, 0};
#pragma unroll
        for (int i = 0; i < IMAGES_EACH; ++i)
#pragma unroll
            for (int j = 0; j < MAPS_EACH; ++j) {
                sums[i][j].x += a[i].x * b[j].x + a[i].y * b[j].y;
                sums[i][j].y += a[i].y * b[j].x - a[i].x * b[j].y;
            }
    }
#pragma unroll
    for (int i = 0; i < IMAGES_EACH; ++i)
#pragma unroll
        for (int j = 0; j < MAPS_EACH; ++j)
            if (n0 + i < images && m0 + j < M)
                out[((n0 + i) * M + m0 + j) * FREQUENCIES + f] = sums[i][j];
}
#endif
