// The index of the largest of K scores, the first of equals, from -D K, THREADS.
// A thread scans the scores of one image.
extern "C" __global__ void __launch_bounds__(THREADS)
    per_image(const float* __restrict__ x, int* __restrict__ y, long long images) {
    const long long n = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (n >= images) return;  // the last block may be too large
    int best = 0;
    for (int k = 1; k < K; ++k)
        if (x[n * K + k] > x[n * K + best]) best = k;
    y[n] = best;
}
