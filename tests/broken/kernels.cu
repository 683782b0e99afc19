// Fully connected layers that are wrong, each in its own way; from -D K, M. One output per thread.

__device__ __forceinline__ float product(const float* x, const float* w, int n, int m) {
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) sum += x[n * K + k] * w[k * M + m];
    return sum;
}

extern "C" __global__ void writes_nothing(const float* x, const float* w, float* y, int images) {
    if (images < 0) y[0] = product(x, w, 0, 0);
}

extern "C" __global__ void off_by_one(const float* x, const float* w, float* y, int images) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < images * M - 1) y[i] = product(x, w, i / M, i % M);
}

extern "C" __global__ void writes_nan(const float* x, const float* w, float* y, int images) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < images * M) y[i] = i == 7 ? nanf("") : product(x, w, i / M, i % M);
}

// The sum is spread over threads without a barrier before it is read.
extern "C" __global__ void races(const float* x, const float* w, float* y, int images) {
    __shared__ float partial[256];
    const int i = blockIdx.x;
    float sum = 0.0f;
    for (int k = threadIdx.x; k < K; k += 256) sum += x[i / M * K + k] * w[k * M + i % M];
    if (threadIdx.x >= 128) __nanosleep(100000);
    partial[threadIdx.x] = sum;
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (int t = 0; t < 256; ++t) total += partial[t];
        y[i] = total;
    }
}

extern "C" __global__ void low_precision(const float* x, const float* w, float* y, int images) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= images * M) return;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) {
        const int bits = __float_as_int(x[i / M * K + k]) & 0xffffe000;
        sum += __int_as_float(bits) * w[k * M + i % M];
    }
    y[i] = sum;
}
