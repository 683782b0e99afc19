// The convolution once more, for images whose outputs are so small beside what their largest input
// and filter could make that fp16 high and low may have lost what counts: in float64, every other
// image is left as it is. Blocks go over all images; an image's outputs are spread over all threads.
#include "stages/conv/tensor/sums.cuh"

constexpr int WARP = 32;
constexpr size_t OUTPUTS = size_t(PIXELS) * M;

__device__ __forceinline__ float output_of(const float* __restrict__ x, const float* __restrict__ w,
                                           int image, int pixel, int column) {
    const int top = pixel / OW * STRIDE - PAD, left = pixel % OW * STRIDE - PAD;
    double sum = 0;
#pragma unroll 1
    for (int k = 0; k < DEPTH; ++k) {
        const int c = k % CH, tap = k / CH;
        const double v = input_at(x, image, top + tap / S, left + tap % S, c);
        sum += v * w[size_t(k) * M + column];
    }
    return float(sum);
}

// `worst`: the largest of `drops`; `room`: the exponent of the least share that outputs may have.
extern "C" __global__ void __launch_bounds__(THREADS)
    tensor_again(const float* __restrict__ x, const float* __restrict__ w,
                 const int* __restrict__ tops, const u32* __restrict__ reached,
                 float* __restrict__ y, int images, int worst, int room) {
    for (int base = 0; base < images; base += WARP) {
        const int own = min(base + int(threadIdx.x) % WARP, images - 1), top = tops[own];
        const bool small = top != NO_TOP && __uint_as_float(reached[own]) < undone(1.0f, top, worst + room);
        const u32 lost = __ballot_sync(~0u, small);
        for (int i = 0; i < min(WARP, images - base); ++i) {
            if (!(lost >> i & 1)) continue;
            for (size_t n = size_t(blockIdx.x) * THREADS + threadIdx.x; n < OUTPUTS;
                 n += size_t(gridDim.x) * THREADS) {
                const int pixel = int(n / M), column = int(n % M);
                output_at(y, base + i, pixel / OW, pixel % OW, column) =
                    output_of(x, w, base + i, pixel, column);
            }
        }
    }
}
