// Copies an activation from layout READS to layout WRITES, one element per thread, threads along
// the output. From -D CH, H, W, READS, WRITES, THREADS.
#include "stages/layout.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    relayout(const float* __restrict__ x, float* __restrict__ y, long long elements) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= elements) return;
    const Index at = locate<WRITES, H, W, CH>(i % (H * W * CH));
    y[i] = x[offset<READS, H, W, CH>(i / (H * W * CH), at.y, at.x, at.c)];
}
