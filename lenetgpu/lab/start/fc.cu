// A fully connected layer, y = x w and ReLU where RELU is 1, from -D K, M, RELU, THREADS.
// A thread computes one output; neighbouring threads take neighbouring outputs of an image.
extern "C" __global__ void __launch_bounds__(THREADS)
    per_output(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
               long long outputs) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= outputs) return;  // the last block may be too large
    const int m = i % M;
    const long long n = i / M;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) sum += x[n * K + k] * w[k * M + m];
    y[i] = RELU && sum < 0.0f ? 0.0f : sum;
}
