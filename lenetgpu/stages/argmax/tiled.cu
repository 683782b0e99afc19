// Index of the largest of K scores of each image, the first of equals, by tiles in shared memory:
// a block loads IMAGES x TILE scores along memory, then a thread scans its image's part of them
// (report, section 3.3.1, with the loads of its section 2.1.3). From -D K, IMAGES, TILE, THREADS.

constexpr int PITCH = TILE | 1;  // odd: the scan's rows begin in different banks
static_assert(IMAGES <= THREADS, "a thread scans an image");
static_assert(IMAGES * PITCH * 4 <= 48 * 1024, "the tile must fit into shared memory");

extern "C" __global__ void __launch_bounds__(THREADS)
    argmax_tile(const float* __restrict__ x, int* __restrict__ y, int images) {
    __shared__ float tile[IMAGES * PITCH];
    const int t = threadIdx.x;
    const int first = blockIdx.x * IMAGES;
    const int here = min(IMAGES, images - first);
    float best = 0.0f;
    int index = 0;
    for (int k0 = 0; k0 < K; k0 += TILE) {
        const int wide = min(TILE, K - k0);
        for (int i = t; i < here * wide; i += THREADS)
            tile[i / wide * PITCH + i % wide] = x[(size_t)(first + i / wide) * K + k0 + i % wide];
        __syncthreads();
        if (t < here)
            for (int k = 0; k < wide; ++k) {
                const float score = tile[t * PITCH + k];
                if (k0 + k == 0 || score > best) {
                    best = score;
                    index = k0 + k;
                }
            }
        __syncthreads();
    }
    if (t < here) y[first + t] = index;
}
