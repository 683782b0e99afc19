// ReLU in place after a library matrix product, one element per thread (report, section 3.1.1).

extern "C" __global__ void __launch_bounds__(THREADS)
    relu_in_place(float* __restrict__ y, long long elements) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i < elements) y[i] = fmaxf(y[i], 0.0f);
}
