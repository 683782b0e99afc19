// One error for each of compute-sanitizer's tools, which `scripts/sanitize.py` must see found before it
// believes that a tool finds none elsewhere. A block of THREADS threads; x and y have THREADS floats.
constexpr int THREADS = 64, WARP = 32;

#ifdef ENTRY_planted_nothing
extern "C" __global__ void planted_nothing(const float* x, float* y) {
    __shared__ float held[THREADS];
    held[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = held[THREADS - 1 - threadIdx.x];
}
#endif

// memcheck: a store past the end of y.
#ifdef ENTRY_planted_memcheck
extern "C" __global__ void planted_memcheck(const float* x, float* y) {
    y[THREADS + threadIdx.x] = x[threadIdx.x];
}
#endif

// racecheck: each warp reads what the other writes, and nothing orders the two.
#ifdef ENTRY_planted_racecheck
extern "C" __global__ void planted_racecheck(const float* x, float* y) {
    __shared__ float held[THREADS];
    held[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = held[THREADS - 1 - threadIdx.x];
}
#endif

// initcheck: x was never written.
#ifdef ENTRY_planted_initcheck
extern "C" __global__ void planted_initcheck(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];
}
#endif

// synccheck: a lane that the mask leaves out comes to the barrier of a warp.
#ifdef ENTRY_planted_synccheck
extern "C" __global__ void planted_synccheck(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];
    const unsigned half = __ballot_sync(~0u, threadIdx.x % WARP < WARP / 2);
    if (threadIdx.x % WARP <= WARP / 2) __syncwarp(half);
    y[threadIdx.x] += 1.0f;
}
#endif
