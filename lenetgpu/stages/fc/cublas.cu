// What surrounds a library matrix product, one element per thread.
// relu_in_place: max(y, 0) (report, section 3.1.1). to_half: float32 to fp16 (3.6).
#include "gpu/ptx/half.cuh"

#ifdef ENTRY_relu_in_place
extern "C" __global__ void __launch_bounds__(THREADS)
    relu_in_place(float* __restrict__ y, long long elements) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i < elements) y[i] = fmaxf(y[i], 0.0f);
}
#endif

#ifdef ENTRY_to_half
extern "C" __global__ void __launch_bounds__(THREADS)
    to_half(const float* __restrict__ x, unsigned short* __restrict__ y, long long elements) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i < elements) y[i] = half_bits(x[i]);
}
#endif
