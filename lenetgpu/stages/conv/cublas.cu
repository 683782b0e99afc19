// im2col: rows[(n, oy, ox)][(r, s, c)] of an NHWC image, one element per thread, so that a
// convolution is one matrix product (report, section 2.2.6). im2col_half rounds to fp16 (3.6).
#include "gpu/ptx/half.cuh"
#include "stages/conv/shape.cuh"

__device__ __forceinline__ float unrolled(const float* __restrict__ x, long long i) {
    const int k = i % K_SIZE;
    const long long row = i / K_SIZE;
    const int p = row % PIXELS;
    const int r = k / CH / S, s = k / CH % S, c = k % CH;
    return input_at(x, row / PIXELS, p / OW * STRIDE + r - PAD, p % OW * STRIDE + s - PAD, c);
}

#ifdef ENTRY_im2col
extern "C" __global__ void __launch_bounds__(THREADS)
    im2col(const float* __restrict__ x, float* __restrict__ rows, long long elements) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i < elements) rows[i] = unrolled(x, i);
}
#endif

#ifdef ENTRY_im2col_half
extern "C" __global__ void __launch_bounds__(THREADS)
    im2col_half(const float* __restrict__ x, unsigned short* __restrict__ rows,
                long long elements) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i < elements) rows[i] = half_bits(unrolled(x, i));
}
#endif
