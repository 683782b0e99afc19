// Parts of a depth added to outputs: a thread adds the SPLIT sums of one output, in order, and undoes
// the scales. parts [part][row][filter], rows are output pixels of all images.
#include "stages/conv/tensor/sums.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    tensor_meet(const float* __restrict__ parts, const int* __restrict__ tops,
                const int* __restrict__ drops, float* __restrict__ y, u32* __restrict__ reached,
                int rows) {
    const size_t outputs = size_t(rows) * M, at = size_t(blockIdx.x) * THREADS + threadIdx.x;
    const size_t first = at - threadIdx.x % 32;
    if (first >= outputs) return;
    const size_t mine = min(at, outputs - 1);
    const int row = int(mine / M), column = int(mine % M), pixel = row % PIXELS;
    const int image[1] = {row / PIXELS};
    float sum = 0.0f;
    for (int part = 0; part < SPLIT; ++part) sum += parts[part * outputs + mine];
    const float v = undone(sum, tops[image[0]], drops[column]);
    if (at < outputs) output_at(y, image[0], pixel / OW, pixel % OW, column) = v;
    const u32 most[1] = {at < outputs ? size_or_none(v) : 0};
    const size_t last = min(first + 31, outputs - 1);
    keep_largest(reached, most, image, int(first / M / PIXELS), int(last / M / PIXELS));
}
