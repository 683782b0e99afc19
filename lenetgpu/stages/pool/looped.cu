// The course report's pools (sections 3.1 and 3.2, tables 9 and 11, figures 4 to 6): a block an
// image, a thread an output pixel, [12,12] and [4,4], which takes the maps one after another.
// relu_in_place (3.1.1): THREADS = 1,024 threads a block, each writes its element back.
// looped_mean: the mean alone (3.2.1); looped_relu_mean: ReLU as it reads (3.2.2). Neighbouring
//   threads are neighbours of a map: CH floats apart in NHWC, side by side from QUAD (3.2.4).
// Pointers are plain, as in NVVP's list. From -D CH, H, W, READS, WRITES, THREADS.
#include "stages/layout.cuh"

#ifdef ENTRY_relu_in_place
extern "C" __global__ void __launch_bounds__(THREADS) relu_in_place(float* x, long long elements) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i < elements) x[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
#else
constexpr int OH = H / 2;
constexpr int OW = W / 2;
static_assert(H % 2 == 0 && W % 2 == 0, "2x2 windows need even maps");
static_assert(OH * OW <= 1024, "a thread an output pixel");

template <bool RELU>
__device__ __forceinline__ void maps_of_an_image(const float* x, float* y) {
    const size_t n = blockIdx.x;
    const int oy = threadIdx.y, ox = threadIdx.x;
    for (int c = 0; c < CH; ++c) {
        float sum = 0.0f;
#pragma unroll
        for (int d = 0; d < 4; ++d) {
            const float value = x[offset<READS, H, W, CH>(n, 2 * oy + d / 2, 2 * ox + d % 2, c)];
            sum += RELU ? fmaxf(value, 0.0f) : value;
        }
        y[offset<WRITES, OH, OW, CH>(n, oy, ox, c)] = 0.25f * sum;
    }
}
#endif

#ifdef ENTRY_looped_mean
extern "C" __global__ void __launch_bounds__(OH* OW)
    looped_mean(const float* x, float* y) {
    maps_of_an_image<false>(x, y);
}
#endif

#ifdef ENTRY_looped_relu_mean
extern "C" __global__ void __launch_bounds__(OH* OW)
    looped_relu_mean(const float* x, float* y) {
    maps_of_an_image<true>(x, y);
}
#endif
