// Epilogue of a product. tensor_reduce: a thread adds the SPLIT sums of one output, in order, and
// undoes the scales; parts [part][output], float32, each part in the outputs' own order.
// tensor_recheck: recomputes in float64 the images whose sums are so small, compared with what their
// largest input and filter could give, that split fp16 may have lost accuracy; other images are left
// as they are. With ReLU also images with a NaN or infinite sum: split infinity makes NaN of what may
// be -infinity, and 0 after ReLU. Blocks divide the images, THREADS at a time; if more blocks than
// one have the same images, an image's outputs are spread over the threads of all of them.
#include "stages/conv/tensor/packed.cuh"

#ifdef ENTRY_tensor_reduce
extern "C" __global__ void __launch_bounds__(THREADS)
    tensor_reduce(const float* __restrict__ parts, const int* __restrict__ exponents,
                  const int* __restrict__ out_scales, Held* __restrict__ y, u32* __restrict__ reached,
                  int images, const float* __restrict__ bias) {
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
    const float v = unscaled(sum, exponents[image[0]], out_scales[column]);
    if (at < outputs) y[at] = Value::store(epilogue(v, bias_at(bias, column)));
    const u32 most[1] = {at < outputs ? size_or_none(v) : 0};
    const size_t last = min(first + 31, outputs - 1);
    keep_largest(reached, most, image, int(first / EACH), int(last / EACH));
}
#endif

#ifdef ENTRY_tensor_recheck
constexpr int WARP = 32, WARPS = THREADS / WARP;
constexpr size_t OUTPUTS = size_t(PIXELS) * M;

__device__ __forceinline__ double sum_of(const Held* __restrict__ x, const float* __restrict__ w,
                                         int image, int pixel, int column) {
    const int top = pixel / OW * STRIDE - PAD, left = pixel % OW * STRIDE - PAD;
    double sum = 0;
#pragma unroll 1
    for (int k = 0; k < K_SIZE; ++k) {
        const int c = k % CH, element = k / CH;
        const double v = value_at(x, image, top + element / S, left + element % S, c);
        sum += v * w[size_t(k) * M + column];
    }
    return sum;
}

// `worst`: the largest output scale exponent; `threshold`: the least scaled exponent of an accurate output.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    tensor_recheck(const Held* __restrict__ x, const float* __restrict__ w,
                   const int* __restrict__ exponents, const u32* __restrict__ reached,
                   Held* __restrict__ y, int images, int worst, int threshold,
                   const float* __restrict__ bias) {
    __shared__ u32 lost[WARPS];
    follow();
    const int groups = (images + THREADS - 1) / THREADS, first = int(blockIdx.x) % groups;
    const int sharing = (int(gridDim.x) - 1 - first) / groups + 1;  // blocks with the same images
    for (int group = first; group < groups; group += gridDim.x) {
        const int own = group * THREADS + threadIdx.x;
        bool small = false;
        if (own < images) {
            const int exponent = exponents[own];
            small = exponent != NO_EXPONENT &&
                    __uint_as_float(reached[own]) < unscaled(1.0f, exponent, worst + threshold);
            if (RELU && reached[own] >= INFINITY_BITS) small = true;
        }
        const u32 of_warp = __ballot_sync(~0u, small);
        __syncthreads();
        if (threadIdx.x % WARP == 0) lost[threadIdx.x / WARP] = of_warp;
        __syncthreads();
        for (int i = 0; i < WARPS; ++i)
            for (u32 left = lost[i]; left; left &= left - 1) {
                const int image = group * THREADS + i * WARP + __ffs(left) - 1;
                for (size_t n = size_t(blockIdx.x / groups) * THREADS + threadIdx.x; n < OUTPUTS;
                     n += size_t(sharing) * THREADS) {
                    const int pixel = int(n / M), column = int(n % M);
                    const double sum = sum_of(x, w, image, pixel, column);
                    y[offset<WRITES, OH, OW, M>(image, pixel / OW, pixel % OW, column)] =
                        Value::store(float(epilogue(sum, bias_at(bias, column))));
                }
            }
    }
}
#endif
