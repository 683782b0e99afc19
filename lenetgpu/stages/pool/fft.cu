// ReLU and 2x2 mean as a box filter by FFT (report, sections 2.4 and 3.2): pad, transform
// (library), multiply, transform back (library), crop (conv/fft.cu, which takes every second).
// pad_rectified: max(x, 0) as maps [n][c][FFT_H][FFT_W], zeros around; one element per thread.
// box_spectrum: map by map times the conjugate spectrum of the box, in place; the box is the same
//   for every channel. From -D CH, H, W, READS, FFT_H, FFT_W, THREADS.
#include "stages/layout.cuh"

#ifdef ENTRY_pad_rectified
extern "C" __global__ void __launch_bounds__(THREADS)
    pad_rectified(const float* __restrict__ x, float* __restrict__ maps, long long elements) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= elements) return;
    const int col = i % FFT_W, row = i / FFT_W % FFT_H, c = i / FFT_W / FFT_H % CH;
    const size_t n = i / ((long long)FFT_W * FFT_H * CH);
    const bool inside = row < H && col < W;
    maps[i] = inside ? fmaxf(x[offset<READS, H, W, CH>(n, row, col, c)], 0.0f) : 0.0f;
}
#endif

#ifdef ENTRY_box_spectrum
constexpr int FREQUENCIES = FFT_H * (FFT_W / 2 + 1);

extern "C" __global__ void __launch_bounds__(THREADS)
    box_spectrum(float2* __restrict__ maps, const float2* __restrict__ box, long long elements) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= elements) return;
    const float2 a = maps[i], b = box[i % FREQUENCIES];
    maps[i] = {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
}
#endif
