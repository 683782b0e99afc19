// Which images on the device hold floats that are no share of white: below 0, above 1 or NaN. Their
// label becomes -1 and their scores, where there are any, NaN; nobody has to wait for a flag.
// A block takes an image, its threads every THREADS-th float. From -D FLOATS, CLASSES, SLACK, THREADS.

extern "C" __global__ void __launch_bounds__(THREADS)
    mark_outside(const float* __restrict__ images, int* labels, float* scores) {
    const float* image = images + (size_t)blockIdx.x * FLOATS;
    const float low = -1.0f / SLACK, high = 1.0f + 1.0f / SLACK;
    bool outside = false;
    for (int i = threadIdx.x; i < FLOATS; i += THREADS)
        outside |= !(image[i] >= low && image[i] <= high);  // NaN compares with nothing
    if (!outside) return;
    labels[blockIdx.x] = -1;  // whoever of the block finds one writes the same
    for (int k = 0; scores && k < CLASSES; ++k)
        scores[(size_t)blockIdx.x * CLASSES + k] = nanf("");
}
