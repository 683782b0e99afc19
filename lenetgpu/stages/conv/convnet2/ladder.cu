// cuda-convnet2's forward convolution and the paper's software ladder (sections 2.2, 3.1, 4).
// A block computes one output pixel of IMAGES images x FILTERS filters from chunks of CACHED_PIXELS
// filter pixels in shared memory; a thread sums IMAGES_PER_THREAD x FILTERS_PER_THREAD outputs.
// Images lie innermost (C, y, x, N), as in cuda-convnet2: neighbouring threads then load and store
// neighbouring images whatever the filter pixel, which is what this kernel is built on; its variants
// therefore relayout NCHW into such a workspace and back (one image is the same bytes either way).
// conv_rolled (3.1) indexes its sums by loop counters, so they lie in local memory; the others, from
// conv_unrolled (3.1.2) on, keep them in registers and differ in how they load (loads.cuh).
#include "stages/conv/convnet2/loads.cuh"

#ifdef ENTRY_conv_rolled
#define SUM_LOOP _Pragma("unroll 1")
#else
#define SUM_LOOP _Pragma("unroll")
#endif

__shared__ alignas(16) float image_pixel[CACHED][IMAGES];
__shared__ alignas(16) float filter_pixel[CACHED][FILTERS];

struct PutImage {
    __device__ __forceinline__ float& operator()(int row, int i) const {
        return image_pixel[row][i];
    }
};
struct PutFilter {
    __device__ __forceinline__ float& operator()(int row, int f) const {
        return filter_pixel[row][f];
    }
};

// Figs. 11 and 12.
__device__ __forceinline__ void accumulate(float (&result)[FILTERS_PER_THREAD][IMAGES_PER_THREAD]) {
#ifdef ENTRY_conv_rolled
#pragma unroll 1
#endif
    for (int i = 0; i < CACHED; ++i)
        SUM_LOOP
        for (int f = 0; f < FILTERS_PER_THREAD; ++f)
            SUM_LOOP
            for (int g = 0; g < IMAGES_PER_THREAD; ++g)
                result[f][g] += image_pixel[i][g * THREADS_X + threadIdx.x] *
                                filter_pixel[i][threadIdx.y * FILTERS_PER_THREAD + f];
}

#if defined(ENTRY_conv_rolled)
#define ENTRY conv_rolled
#elif defined(ENTRY_conv_unrolled)
#define ENTRY conv_unrolled
#elif defined(ENTRY_conv_strength_reduced)
#define ENTRY conv_strength_reduced
#elif defined(ENTRY_conv_hoisted_checks)
#define ENTRY conv_hoisted_checks
#elif defined(ENTRY_conv_index_table)
#define ENTRY conv_index_table
#endif

extern "C" __global__ void __launch_bounds__(THREADS FEWER_AT_ONCE)
    ENTRY(const float* __restrict__ images, const float* __restrict__ filters,
          float* __restrict__ outputs, int image_count, const int* __restrict__ table SPANS) {
    SPAN_BEGIN
    Watch watch;
    const Tile at = tile_of(blockIdx.x);
    float result[FILTERS_PER_THREAD][IMAGES_PER_THREAD] = {};
    for (int pixel = 0; pixel < FILTER_PIXELS; pixel += CACHED_PIXELS)
        for (int channel = 0; channel < CH; channel += CACHED_CHANNELS) {
            load_chunk(PutImage(), PutFilter(), images, filters, at, pixel, channel, image_count,
                       table, watch);
            __syncthreads();
            watch.end_of(LOADED_BARRIER);
            accumulate(result);
            watch.end_of(COMPUTE);
            __syncthreads();
            watch.end_of(COMPUTED_BARRIER);
        }
    SUM_LOOP
    for (int f = 0; f < FILTERS_PER_THREAD; ++f)
        SUM_LOOP
        for (int g = 0; g < IMAGES_PER_THREAD; ++g)
            store(outputs, at, threadIdx.y * FILTERS_PER_THREAD + f, g * THREADS_X + threadIdx.x,
                  image_count, result[f][g]);
    PARTS_END
    SPAN_END
}
