// Parts of a depth added to outputs: a thread adds the SPLIT sums of one output, in order, and undoes
// the scales. parts [part][output]: each part in the outputs' own order.
#include "stages/conv/tensor/packed.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    tensor_meet(const float* __restrict__ parts, const int* __restrict__ tops,
                const int* __restrict__ drops, float* __restrict__ y, u32* __restrict__ reached,
                int images) {
    constexpr u32 EACH = u32(PIXELS) * M;  // outputs of an image
    follow();
    const size_t outputs = size_t(images) * EACH, at = size_t(blockIdx.x) * THREADS + threadIdx.x;
    const size_t first = at - threadIdx.x % 32;
    if (first >= outputs) return;
    const size_t mine = min(at, outputs - 1);
    const int image[1] = {int(mine / EACH)};
    const u32 own = u32(mine % EACH);
    const int column = WRITES == NHWC ? own % M : own / PIXELS;
    float sum = 0.0f;
#pragma unroll
    for (int part = 0; part < SPLIT; ++part) sum += parts[part * outputs + mine];
    const float v = undone(sum, tops[image[0]], drops[column]);
    if (at < outputs) y[at] = v;
    const u32 most[1] = {at < outputs ? size_or_none(v) : 0};
    const size_t last = min(first + 31, outputs - 1);
    keep_largest(reached, most, image, int(first / EACH), int(last / EACH));
}
