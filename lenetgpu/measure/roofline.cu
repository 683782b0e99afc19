// What the device can do at most, measured: fp32 multiply-adds and fp16 tensor-core products.
// Each thread keeps CHAINS independent accumulators busy for STEPS steps; the result is stored
// so that nothing is optimised away. From -D CHAINS, STEPS, THREADS.

#ifdef ENTRY_fma_rate
extern "C" __global__ void __launch_bounds__(THREADS) fma_rate(float* out, float a, float b) {
    float sums[CHAINS];
#pragma unroll
    for (int i = 0; i < CHAINS; ++i) sums[i] = threadIdx.x + i;
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < CHAINS; ++i) sums[i] = fmaf(sums[i], a, b);
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < CHAINS; ++i) total += sums[i];
    out[blockIdx.x * THREADS + threadIdx.x] = total;
}
#endif

// mma.sync m16n8k8, fp16 in, fp32 sums: 2 * 16 * 8 * 8 operations per warp and chain.
#ifdef ENTRY_mma_rate
extern "C" __global__ void __launch_bounds__(THREADS) mma_rate(float* out, unsigned a, unsigned b) {
    float sums[CHAINS][4] = {};
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < CHAINS; ++i)
            asm volatile(
                "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                : "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3])
                : "r"(a), "r"(a), "r"(b));
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < CHAINS; ++i) total += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
    out[blockIdx.x * THREADS + threadIdx.x] = total;
}
#endif
