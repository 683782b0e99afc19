// The paper's index converter (section 4.3) as hardware has it now: the tensor memory accelerator's
// im2col addressing. One thread asks for "these output pixels under filter pixel (r, s)"; the copy
// engine converts the indices, bounds them and writes zeros outside the image.
// Images are NHWC, channels a multiple of 4. A block computes PIXELS_TILE output pixels, counted
// through images, x FILTERS filters; a thread IMAGES_PER_THREAD (as pixels) x FILTERS_PER_THREAD.
// Chunks of CACHED_PIXELS filter pixels x CHUNK channels go through a pipeline of STAGES; filters come
// packed [block][filter pixel][channel][FILTERS] by bulk copies. Hopper's instruction; strides up to
// 8, padding and filters within 128 pixels, since the map's corners are 8-bit.
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/barrier.cuh"
#include "gpu/ptx/im2col.cuh"
#include "gpu/ptx/shared.cuh"
#include "stages/conv/convnet2/span.cuh"
#include "stages/conv/shape.cuh"

constexpr int THREADS = THREADS_X * THREADS_Y;
constexpr int PIXELS_TILE = THREADS_X * IMAGES_PER_THREAD;
constexpr int FILTERS = THREADS_Y * FILTERS_PER_THREAD;
constexpr int FILTER_BLOCKS = (M + FILTERS - 1) / FILTERS;
constexpr int FILTER_PIXELS = R * S;
constexpr int CHUNKS = (CH + CHUNK - 1) / CHUNK;
constexpr int GROUPS = (FILTER_PIXELS + CACHED_PIXELS - 1) / CACHED_PIXELS;
constexpr int ITEMS = GROUPS * CHUNKS;

constexpr int ROW_BYTES = CHUNK * 4, VECTORS = CHUNK / 4;
constexpr int WINDOW_BYTES = PIXELS_TILE * ROW_BYTES, FILTER_BYTES = CHUNK * FILTERS * 4;
constexpr int FILTERS_AT = CACHED_PIXELS * WINDOW_BYTES;
static_assert(CHUNK == 4 || CHUNK == 8 || CHUNK == 16 || CHUNK == 32,
              "a row is one of the swizzles' widths");
static_assert(WINDOW_BYTES % 1024 == 0 && STAGE_BYTES % 1024 == 0, "swizzles repeat in 1 KiB");
static_assert(STAGE_BYTES >= FILTERS_AT + CACHED_PIXELS * FILTER_BYTES, "the launcher's layout");
static_assert(FILTERS_PER_THREAD % 4 == 0, "filters are read four at a time");

struct Start {
    int x, y, n;
};

__device__ __forceinline__ void ask(unsigned stage, unsigned bar, const TensorMap* map,
                                    const float* __restrict__ filters, Start at, int item) {
    const int pixel = item / CHUNKS * CACHED_PIXELS, chunk = item % CHUNKS;
    const int elements = min(CACHED_PIXELS, FILTER_PIXELS - pixel);
    ptx::barrier_expect(bar, elements * (WINDOW_BYTES + FILTER_BYTES));
    for (int p = 0; p < elements; ++p) {
        const int element = pixel + p;
        ptx::load_windows(stage + p * WINDOW_BYTES, map, chunk * CHUNK, at.x, at.y, at.n, element % S,
                          element / S, bar);
        ptx::bulk_load(stage + FILTERS_AT + p * FILTER_BYTES,
                       filters + size_t(element * CHUNKS + chunk) * (CHUNK * FILTERS), FILTER_BYTES,
                       bar);
    }
}

// Vector `v` of a row lies where the copy engine's swizzle put it: by turns, so that neighbouring
// rows' vectors fall into different banks.
__device__ __forceinline__ float4 window_at(const char* window, int row, int v) {
    const int turned = v ^ (row * ROW_BYTES / 128 & (VECTORS - 1));
    return *reinterpret_cast<const float4*>(window + row * ROW_BYTES + turned * 16);
}

__device__ __forceinline__ void accumulate(
    float (&result)[FILTERS_PER_THREAD][IMAGES_PER_THREAD], const char* window,
    const float* filters) {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        float image[4][IMAGES_PER_THREAD];
#pragma unroll
        for (int g = 0; g < IMAGES_PER_THREAD; ++g) {
            const float4 channels = window_at(window, g * THREADS_X + threadIdx.x, v);
            image[0][g] = channels.x, image[1][g] = channels.y;
            image[2][g] = channels.z, image[3][g] = channels.w;
        }
#pragma unroll
        for (int c = 0; c < 4; ++c)
#pragma unroll
            for (int f = 0; f < FILTERS_PER_THREAD; f += 4) {
                const float4 four = *reinterpret_cast<const float4*>(
                    filters + (v * 4 + c) * FILTERS + threadIdx.y * FILTERS_PER_THREAD + f);
#pragma unroll
                for (int g = 0; g < IMAGES_PER_THREAD; ++g) {
                    result[f][g] += image[c][g] * four.x;
                    result[f + 1][g] += image[c][g] * four.y;
                    result[f + 2][g] += image[c][g] * four.z;
                    result[f + 3][g] += image[c][g] * four.w;
                }
            }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    conv_index_engine(const __grid_constant__ TensorMap map, const float* __restrict__ packed,
                      float* __restrict__ y, int outputs SPANS) {
    SPAN_BEGIN
    extern __shared__ __align__(1024) char stages[];
    unsigned long long* full = reinterpret_cast<unsigned long long*>(stages + STAGES * STAGE_BYTES);
    const bool leader = threadIdx.x == 0 && threadIdx.y == 0;
    const int block = blockIdx.x % FILTER_BLOCKS;
    const int first = blockIdx.x / FILTER_BLOCKS * PIXELS_TILE;
    const int pixel = first % PIXELS;
    const Start at = {pixel % OW * STRIDE - PAD, pixel / OW * STRIDE - PAD, first / PIXELS};
    const float* filters = packed + size_t(block) * (FILTER_PIXELS * CHUNKS * CHUNK * FILTERS);
    if (leader) {
        ptx::prefetch_map(&map);
        for (int i = 0; i < STAGES; ++i) ptx::barrier_init(ptx::shared(&full[i]), 1);
        ptx::barrier_init_fence();
        for (int i = 0; i < STAGES && i < ITEMS; ++i)
            ask(ptx::shared(stages) + i * STAGE_BYTES, ptx::shared(&full[i]), &map, filters, at, i);
    }
    __syncthreads();
    float result[FILTERS_PER_THREAD][IMAGES_PER_THREAD] = {};
    for (int item = 0; item < ITEMS; ++item) {
        const int slot = item % STAGES;
        const char* stage = stages + slot * STAGE_BYTES;
        ptx::barrier_wait(ptx::shared(&full[slot]), item / STAGES & 1);
        const int elements = min(CACHED_PIXELS, FILTER_PIXELS - item / CHUNKS * CACHED_PIXELS);
        for (int p = 0; p < elements; ++p)
            accumulate(result, stage + p * WINDOW_BYTES,
                       reinterpret_cast<const float*>(stage + FILTERS_AT + p * FILTER_BYTES));
        __syncthreads();
        if (leader && item + STAGES < ITEMS)
            ask(ptx::shared(stage), ptx::shared(&full[slot]), &map, filters, at, item + STAGES);
    }
#pragma unroll
    for (int g = 0; g < IMAGES_PER_THREAD; ++g) {
        const int output = first + g * THREADS_X + threadIdx.x;
        if (output >= outputs) continue;
        const int n = output / PIXELS, p = output % PIXELS;
#pragma unroll
        for (int f = 0; f < FILTERS_PER_THREAD; ++f) {
            const int m = block * FILTERS + threadIdx.y * FILTERS_PER_THREAD + f;
            if (m < M) output_at(y, n, p / OW, p % OW, m) = result[f][g];
        }
    }
    SPAN_END
}
