// What surrounds cuBLAS Idamax, which knows magnitudes alone and counts from 1 (report, 3.3).
// ranks: the rank of a score among all floats, shifted so that none is negative: 2^31 + the
//   float's bits as an ordered integer, exact as a double. Two scores that differ stay apart,
//   which x - min(x) in fp32 does not promise; -0 is taken for 0.
// labels: what Idamax found, 4 or 8 bytes of a cleared 8, less 1. From -D THREADS.

#ifdef ENTRY_ranks
extern "C" __global__ void __launch_bounds__(THREADS)
    ranks(const float* __restrict__ x, double* __restrict__ shifted, long long scores) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= scores) return;
    const int bits = __float_as_int(x[i] + 0.0f);
    const int ordered = bits < 0 ? bits ^ 0x7fffffff : bits;
    shifted[i] = 2147483648.0 + ordered;
}
#endif

#ifdef ENTRY_labels
extern "C" __global__ void __launch_bounds__(THREADS)
    labels(const long long* __restrict__ found, int* __restrict__ y, long long images) {
    const long long n = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (n < images) y[n] = (int)found[n] - 1;
}
#endif
