// What a warp waits for, in clocks: each step needs the one before it, so nothing overlaps.
// fma_latency: STEPS multiply-adds on one register, `out` what they come to.
// load_latency: STEPS loads, each the address of the next (a pointer chase), `out` where it ends.
// The host takes the difference of two lengths, so that what comes before and after does not count.

#ifdef ENTRY_fma_latency
extern "C" __global__ void fma_latency(float* __restrict__ out, long long* __restrict__ clocks,
                                       float a, float b) {
    float x = a;
    const long long begin = clock64();
#pragma unroll 64
    for (int i = 0; i < STEPS; ++i) x = fmaf(x, a, b);
    const long long end = clock64();
    *out = x;
    *clocks = end - begin;
}
#endif

#ifdef ENTRY_load_latency
extern "C" __global__ void load_latency(int* __restrict__ out, long long* __restrict__ clocks,
                                        const int* __restrict__ next) {
    int at = 0;
    const long long begin = clock64();
#pragma unroll 16
    for (int i = 0; i < STEPS; ++i) at = next[at];
    const long long end = clock64();
    *out = at;
    *clocks = end - begin;
}
#endif
