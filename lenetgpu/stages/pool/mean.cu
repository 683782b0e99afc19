// ReLU and 2x2 mean (report, sections 3.1 and 3.2), from -D CH, H, W, READS, WRITES, THREADS.
// relu: one element per thread, to a map of its own (3.1.1).
// mean / relu_mean: one output per thread, threads along the output's memory order; relu_mean
//   takes the ReLU while it reads (3.2.2). From QUAD the four reads of a warp coalesce (3.2.4).
#include "stages/layout.cuh"

constexpr int OH = H / 2;
constexpr int OW = W / 2;
static_assert(H % 2 == 0 && W % 2 == 0, "2x2 windows need even maps");

#ifdef ENTRY_relu
extern "C" __global__ void __launch_bounds__(THREADS)
    relu(const float* __restrict__ x, float* __restrict__ y, long long elements) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i < elements) y[i] = fmaxf(x[i], 0.0f);
}
#endif

template <bool RELU>
__device__ __forceinline__ void pool(const float* __restrict__ x, float* __restrict__ y,
                                     long long outputs) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= outputs) return;
    const size_t n = i / (OH * OW * CH);
    const Index at = locate<WRITES, OH, OW, CH>(i % (OH * OW * CH));
    float sum = 0.0f;
#pragma unroll
    for (int d = 0; d < 4; ++d) {
        const float value = x[offset<READS, H, W, CH>(n, 2 * at.y + d / 2, 2 * at.x + d % 2, at.c)];
        sum += RELU ? fmaxf(value, 0.0f) : value;
    }
    y[i] = 0.25f * sum;
}

#ifdef ENTRY_mean
extern "C" __global__ void __launch_bounds__(THREADS)
    mean(const float* __restrict__ x, float* __restrict__ y, long long outputs) {
    pool<false>(x, y, outputs);
}
#endif

#ifdef ENTRY_relu_mean
extern "C" __global__ void __launch_bounds__(THREADS)
    relu_mean(const float* __restrict__ x, float* __restrict__ y, long long outputs) {
    pool<true>(x, y, outputs);
}
#endif
