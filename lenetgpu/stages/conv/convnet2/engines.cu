// The paper's two product engines (sections 3.2 and 3.3) as mma.sync on split fp32 operands, in
// place of the ladder's sums: same layout, same loads, a block as in ladder.cu.
// conv_inner_product: a chunk lies [image][row] and [filter][row], rows contiguous; a warp takes
//   one 16 x 8 fragment of outputs at a time, streams the whole chunk through it as dot products
//   (Fig. 16) and adds that partial sum to its result (Fig. 19).
// conv_outer_product: a chunk lies [row][image] and [row][filter]; for every 8 rows a warp loads
//   its filters and images once and multiplies all pairs into sums held in registers (Fig. 21).
// Both add a chunk's sums in fp32, since the tensor cores' own additions truncate; a float is two
// TF32 numbers, so a product costs three (gpu/ptx/tf32.cuh).
#include "stages/conv/convnet2/loads.cuh"
#include "gpu/ptx/tf32.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int DEEP = 8, FRAGMENT_M = 16, FRAGMENT_N = 8;
constexpr int DOWN = FILTERS / FRAGMENT_M;            // fragments of a warp along the filters,
constexpr int ACROSS = IMAGES / FRAGMENT_N / WARPS;  // and along the images
static_assert(CACHED % DEEP == 0, "mma.sync multiplies 8 rows of a chunk at once");
static_assert(FILTERS % FRAGMENT_M == 0 && IMAGES % (FRAGMENT_N * WARPS) == 0 && ACROSS > 0,
              "warps take whole fragments of 16 filters x 8 images");

__device__ __forceinline__ void store_fragments(float* __restrict__ outputs, Tile at,
                                                int image_count,
                                                const float (&result)[DOWN][ACROSS][4], int warp,
                                                int lane) {
#pragma unroll
    for (int i = 0; i < DOWN; ++i)
#pragma unroll
        for (int j = 0; j < ACROSS; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                store(outputs, at, i * FRAGMENT_M + e / 2 * 8 + lane / 4,
                      (warp * ACROSS + j) * FRAGMENT_N + lane % 4 * 2 + e % 2, image_count,
                      result[i][j][e]);
}

#ifdef ENTRY_conv_inner_product
// 8 or 24 modulo 32 words: the rows of a half warp's 8-byte loads fall into different banks.
constexpr int PITCH = CACHED % 16 == 8 ? CACHED : CACHED + 8;
__shared__ alignas(16) float images_of[IMAGES][PITCH];
__shared__ alignas(16) float filters_of[FILTERS][PITCH];

struct PutImage {
    __device__ __forceinline__ float& operator()(int row, int i) const { return images_of[i][row]; }
};
struct PutFilter {
    __device__ __forceinline__ float& operator()(int row, int f) const {
        return filters_of[f][row];
    }
};

__device__ __forceinline__ void accumulate(float (&result)[DOWN][ACROSS][4], int warp, int lane) {
    const int row = lane / 4, k = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < DOWN; ++i)
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) {
            const float* upper = &filters_of[i * FRAGMENT_M + row][k];
            const float* image = &images_of[(warp * ACROSS + j) * FRAGMENT_N + row][k];
            float partial_sum[4] = {};
#pragma unroll
            for (int deep = 0; deep < CACHED; deep += DEEP) {
                const float2 a = *reinterpret_cast<const float2*>(upper + deep);
                const float2 c = *reinterpret_cast<const float2*>(upper + 8 * PITCH + deep);
                const float2 b = *reinterpret_cast<const float2*>(image + deep);
                const Split left[4] = {split_tf32(a.x), split_tf32(c.x), split_tf32(a.y),
                                       split_tf32(c.y)};
                const Split right[2] = {split_tf32(b.x), split_tf32(b.y)};
                multiply_split(partial_sum, left, right);
            }
#pragma unroll
            for (int e = 0; e < 4; ++e) result[i][j][e] += partial_sum[e];
        }
}
#endif

#ifdef ENTRY_conv_outer_product
constexpr int SKEW = 8;  // rows 8 or 24 words apart modulo 32: no two lanes in one bank
static_assert(FILTERS % 16 == 0 && (IMAGES % 16 == 0 || IMAGES == 8), "the skew fits these rows");
__shared__ alignas(16) float image_pixel[CACHED][IMAGES == 8 ? 8 : IMAGES + SKEW];
__shared__ alignas(16) float filter_pixel[CACHED][FILTERS + SKEW];

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

__device__ __forceinline__ void accumulate(float (&result)[DOWN][ACROSS][4], int warp, int lane) {
    const int column = lane / 4, k = lane % 4;
    float sums[DOWN][ACROSS][4] = {};
#pragma unroll
    for (int deep = 0; deep < CACHED; deep += DEEP) {
        Split left[DOWN][4], right[ACROSS][2];
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                left[i][e] = split_tf32(filter_pixel[deep + k + e / 2 * 4]
                                                    [i * FRAGMENT_M + e % 2 * 8 + column]);
#pragma unroll
        for (int j = 0; j < ACROSS; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                right[j][e] = split_tf32(
                    image_pixel[deep + k + e * 4][(warp * ACROSS + j) * FRAGMENT_N + column]);
#pragma unroll
        for (int i = 0; i < DOWN; ++i)
#pragma unroll
            for (int j = 0; j < ACROSS; ++j) multiply_split(sums[i][j], left[i], right[j]);
    }
#pragma unroll
    for (int i = 0; i < DOWN; ++i)
#pragma unroll
        for (int j = 0; j < ACROSS; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) result[i][j][e] += sums[i][j][e];
}
#endif

#ifdef ENTRY_conv_inner_product
#define ENTRY conv_inner_product
#else
#define ENTRY conv_outer_product
#endif

extern "C" __global__ void __launch_bounds__(THREADS FEWER_AT_ONCE)
    ENTRY(const float* __restrict__ images, const float* __restrict__ filters,
          float* __restrict__ outputs, int image_count, const int* __restrict__ table SPANS) {
    SPAN_BEGIN
    Watch watch;
    const int thread = threadIdx.y * THREADS_X + threadIdx.x;
    const int warp = thread / 32, lane = thread % 32;
    const Tile at = tile_of(blockIdx.x);
    float result[DOWN][ACROSS][4] = {};
    for (int pixel = 0; pixel < FILTER_PIXELS; pixel += CACHED_PIXELS)
        for (int channel = 0; channel < CH; channel += CACHED_CHANNELS) {
            load_chunk(PutImage(), PutFilter(), images, filters, at, pixel, channel, image_count,
                       table, watch);
            __syncthreads();
            watch.end_of(LOADED_BARRIER);
            accumulate(result, warp, lane);
            watch.end_of(COMPUTE);
            __syncthreads();
            watch.end_of(COMPUTED_BARRIER);
        }
    store_fragments(outputs, at, image_count, result, warp, lane);
    PARTS_END
    SPAN_END
}
