// conv1, ReLU and pool1 in fp32 on CUDA cores, by Winograd F(4,5) along x only: over one input
// channel the transforms are the work. A block takes an image, a warp some pooled rows, a lane one
// of 32 channels; writes pool1's tiles transformed for conv2 (tiles.cuh), the last image's again to
// the end of its group. Sums of 2x2 windows: pool1's 1/4 is in conv2's weights, pixels' 1/255 in
// these.
#include "stages/fused/cuda_cores/tiles.cuh"

constexpr int SIDE = 28, PIXELS = SIDE * SIDE, FILTER = 5;
constexpr int POOLED = 12;                               // pool1's rows and columns
constexpr int ROW_TILES = 6;
constexpr int IMAGE_ROWS = SIDE * ROW_TILES * POINTS;    // [row][tile][point]
constexpr int COLUMNS = 2 * POINTS;                      // tile in x, point in x
constexpr int IMAGE_MAPS = POOLED * COLUMNS * MAPS1;     // [row][column][map]
constexpr int WARPS = THREADS / WARP;
static_assert(POOLED % WARPS == 0, "every warp takes as many pooled rows");
static_assert(SHARED_BYTES == 4 * (IMAGE_ROWS + IMAGE_MAPS), "see the arrays");

#if PIXEL_BYTES == 1
typedef unsigned char Pixel;
__device__ __forceinline__ float4 load4(const Pixel* p) {
    const uchar4 four = *reinterpret_cast<const uchar4*>(p);
    return make_float4(four.x, four.y, four.z, four.w);
}
#else
typedef float Pixel;
__device__ __forceinline__ float4 load4(const Pixel* p) {
    return *reinterpret_cast<const float4*>(p);
}
#endif

// Two rows of twelve outputs of one map, rectified and summed to six; `rows` is at the first of
// six image rows and at the first of three tiles.
__device__ __forceinline__ void six_pooled(const float* rows, const float (&w)[FILTER][POINTS],
                                           float* pooled) {
    constexpr int T = ROW_TILES / 2;
    float sum[2][T][POINTS] = {};
#pragma unroll
    for (int y = 0; y < FILTER + 1; ++y)
#pragma unroll
        for (int j0 = 0; j0 < POINTS; j0 += 4) {
            float v[T][4];
#pragma unroll
            for (int t = 0; t < T; ++t) {
                const float4 four = *reinterpret_cast<const float4*>(
                    rows + (y * ROW_TILES + t) * POINTS + j0);
                v[t][0] = four.x, v[t][1] = four.y, v[t][2] = four.z, v[t][3] = four.w;
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (y < FILTER)
#pragma unroll
                    for (int t = 0; t < T; ++t)
                        sum[0][t][j0 + j] =
                            fmaf(w[y < FILTER ? y : 0][j0 + j], v[t][j], sum[0][t][j0 + j]);
                if (y > 0)
#pragma unroll
                    for (int t = T - 1; t >= 0; --t)
                        sum[1][t][j0 + j] =
                            fmaf(w[y > 0 ? y - 1 : 0][j0 + j], v[t][j], sum[1][t][j0 + j]);
            }
        }
#pragma unroll
    for (int t = 0; t < T; ++t) {
        float top[OUTPUTS], bottom[OUTPUTS];
        transform_output(sum[0][t], top);
        transform_output(sum[1][t], bottom);
        pooled[2 * t] = relu_sum(top[0], top[1], bottom[0], bottom[1]);
        pooled[2 * t + 1] = relu_sum(top[2], top[3], bottom[2], bottom[3]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    plain_conv1(const Pixel* __restrict__ images, const float* __restrict__ weights,
                float* __restrict__ tiles, int count) {
    extern __shared__ float4 shared[];
    float* rows = reinterpret_cast<float*>(shared);
    float* maps = rows + IMAGE_ROWS;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n = blockIdx.x;
    float w[FILTER][POINTS];
#pragma unroll
    for (int r = 0; r < FILTER; ++r)
#pragma unroll
        for (int j = 0; j < POINTS; ++j) w[r][j] = weights[(r * POINTS + j) * MAPS1 + lane];

    const Pixel* image = images + static_cast<size_t>(min(n, count - 1)) * PIXELS;
    for (int item = threadIdx.x; item < SIDE * ROW_TILES; item += THREADS) {
        const Pixel* p = image + item / ROW_TILES * SIDE + item % ROW_TILES * OUTPUTS;
        const float4 lo = load4(p), hi = load4(p + 4);
        const float d[POINTS] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
        float v[POINTS];
        transform_input(d, v);
        float4* to = reinterpret_cast<float4*>(rows + item * POINTS);
        to[0] = make_float4(v[0], v[1], v[2], v[3]);
        to[1] = make_float4(v[4], v[5], v[6], v[7]);
    }
    __syncthreads();

#pragma unroll 1
    for (int py = warp; py < POOLED; py += WARPS) {
        const float* from = rows + 2 * py * ROW_TILES * POINTS;
        float pooled[POOLED];
        six_pooled(from, w, pooled);
        six_pooled(from + ROW_TILES / 2 * POINTS, w, pooled + POOLED / 2);
        float* to = maps + py * COLUMNS * MAPS1 + lane;
#pragma unroll
        for (int tx = 0; tx < 2; ++tx) {
            float v[POINTS];
            transform_input(pooled + tx * OUTPUTS, v);
#pragma unroll
            for (int j = 0; j < POINTS; ++j) to[(tx * POINTS + j) * MAPS1] = v[j];
        }
    }
    __syncthreads();

    float* group = tiles + static_cast<size_t>(n / GROUP) * (POINTS * POINT_COLUMN) +
                   lane / BK * (GROUP * BK * IMAGE_TILES) +
                   (n % GROUP * BK + lane % BK) * IMAGE_TILES;
#pragma unroll 1
    for (int j = warp; j < POINTS; j += WARPS) {
        const float* from = maps + j * MAPS1 + lane;
        float v[IMAGE_TILES][POINTS];
#pragma unroll
        for (int tx = 0; tx < 2; ++tx) {
            float d[POOLED];
#pragma unroll
            for (int y = 0; y < POOLED; ++y) d[y] = from[(y * COLUMNS + tx * POINTS) * MAPS1];
            transform_input(d, v[tx]);
            transform_input(d + OUTPUTS, v[2 + tx]);
        }
        float* to = group + j * POINT_COLUMN;
#pragma unroll
        for (int i = 0; i < POINTS; ++i)
            *reinterpret_cast<float4*>(to + i * POINT) =
                make_float4(v[0][i], v[1][i], v[2][i], v[3][i]);
    }
}
