extern "C" __global__ void spill(float* x, int n) {
    float held[64];
    for (int i = 0; i < 64; ++i) held[i] = x[i] * x[i];
    for (int i = 0; i < n; ++i) held[(i * n) % 64] += held[i % 64];
    x[threadIdx.x] = held[n % 64];
}
