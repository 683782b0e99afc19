// Which images on the device hold floats that are no share of white: below 0, above 1 or NaN, or
// none of them as bright as 2^FAINTEST and yet some above 0. Their label becomes -1 and their scores,
// where there are any, NaN; nobody has to wait for a flag.
// A block takes an image, its threads every THREADS-th float. From -D FLOATS, CLASSES, SLACK,
// FAINTEST (an exponent), THREADS.

extern "C" __global__ void __launch_bounds__(THREADS)
    mark_outside(const float* __restrict__ images, int* labels, float* scores) {
    const float* image = images + (size_t)blockIdx.x * FLOATS;
    const float low = -1.0f / SLACK, high = 1.0f + 1.0f / SLACK;
    const float faintest = ldexpf(1.0f, FAINTEST);
    __shared__ int lit, bright;
    if (threadIdx.x == 0) lit = bright = 0;
    __syncthreads();
    bool outside = false;
    for (int i = threadIdx.x; i < FLOATS; i += THREADS) {
        const float pixel = image[i];
        outside |= !(pixel >= low && pixel <= high);  // NaN compares with nothing
        if (pixel > 0.0f) lit = 1;  // whoever of the block finds one writes the same
        if (pixel >= faintest) bright = 1;
    }
    __syncthreads();
    if (!outside && (bright || !lit)) return;
    labels[blockIdx.x] = -1;
    for (int k = 0; scores && k < CLASSES; ++k)
        scores[(size_t)blockIdx.x * CLASSES + k] = nanf("");
}
