// Index of the largest of K scores of each image, the first of equals, its comparisons unrolled:
// a thread per score compares it with all K of its image, from global memory, nothing shared
// (as the report's unrolled convolution, section 2.2.1); the one that none beats writes.
// From -D K, THREADS.

extern "C" __global__ void __launch_bounds__(THREADS)
    argmax_pairs(const float* __restrict__ x, int* __restrict__ y, long long scores) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= scores) return;
    const long long n = i / K;
    const int k = i % K;
    const float mine = x[i];
    bool beaten = false;
    for (int other = 0; other < K; ++other) {
        const float score = x[n * K + other];
        beaten |= score > mine || (score == mine && other < k);
    }
    if (!beaten) y[n] = k;
}
