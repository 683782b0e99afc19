// Index of the largest of K scores of each image, the first of equals (report, section 3.3).
// argmax_thread: one thread per image (3.3.1).
// argmax_shuffle: a group of LANES lanes per image reduces by warp shuffles, without barriers.
// argmax_list: PAIRS = ceil(K / 2) threads per image halve the list of candidates in shared
//   memory until one is left (3.3.2). From -D K, and IMAGES per block.

#ifdef ENTRY_argmax_thread
extern "C" __global__ void __launch_bounds__(IMAGES)
    argmax_thread(const float* __restrict__ x, int* __restrict__ y, int images) {
    const int n = blockIdx.x * IMAGES + threadIdx.x;
    if (n >= images) return;
    const float* scores = x + (size_t)n * K;
    int best = 0;
    for (int k = 1; k < K; ++k)
        if (scores[k] > scores[best]) best = k;
    y[n] = best;
}
#endif

#ifdef ENTRY_argmax_list
constexpr int PAIRS = (K + 1) / 2;

extern "C" __global__ void __launch_bounds__(PAIRS* IMAGES)
    argmax_list(const float* __restrict__ x, int* __restrict__ y, int images) {
    __shared__ float value[IMAGES][K];
    __shared__ int index[IMAGES][K];
    const int t = threadIdx.x, row = threadIdx.y;
    const int n = blockIdx.x * IMAGES + row;
    for (int k = t; k < K; k += PAIRS) {
        value[row][k] = n < images ? x[(size_t)n * K + k] : 0.0f;
        index[row][k] = k;
    }
    for (int left = K; left > 1; left = (left + 1) / 2) {
        const int half = (left + 1) / 2;
        __syncthreads();
        if (t + half < left) {
            const float other = value[row][t + half];
            const bool wins = other > value[row][t] ||
                              (other == value[row][t] && index[row][t + half] < index[row][t]);
            if (wins) {
                value[row][t] = other;
                index[row][t] = index[row][t + half];
            }
        }
    }
    if (t == 0 && n < images) y[n] = index[row][0];
}
#endif

#ifdef ENTRY_argmax_shuffle
static_assert(LANES <= 32 && (LANES & (LANES - 1)) == 0, "a group is a power of two in one warp");

extern "C" __global__ void __launch_bounds__(LANES* IMAGES)
    argmax_shuffle(const float* __restrict__ x, int* __restrict__ y, int images) {
    const int lane = threadIdx.x % LANES;
    const int n = blockIdx.x * IMAGES + threadIdx.x / LANES;
    float best = 0.0f;
    int index = K;
    if (n < images)
        for (int k = lane; k < K; k += LANES) {
            const float score = x[(size_t)n * K + k];
            if (index == K || score > best) {
                best = score;
                index = k;
            }
        }
    for (int apart = LANES / 2; apart > 0; apart /= 2) {
        const float other = __shfl_down_sync(0xffffffffu, best, apart, LANES);
        const int at = __shfl_down_sync(0xffffffffu, index, apart, LANES);
        if (at < K && (index == K || other > best || (other == best && at < index))) {
            best = other;
            index = at;
        }
    }
    if (lane == 0 && n < images) y[n] = index;
}
#endif
