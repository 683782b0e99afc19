// Direct convolution, one output per thread (report, section 2.1). The report's own grids are of
//   [images,maps] blocks, the images fastest, and its pointers plain: y might be x or w.
// conv_map: a block computes one map of one image straight from global memory; BLOCK_W x BLOCK_H
//   threads walk the map (32x32 with idle threads: 2.1.1; as many as outputs: 2.1.2).
// conv_shared_constant (2.1.3): a block computes a TILE_H x TILE_W part of one map; its threads
//   load the input tile into shared memory, channel by channel; filters in constant memory
//   where they fit. MIN_BLOCKS: per SM.
// conv_four_maps (2.1.4): 256 threads compute an 8x8 part of four maps from one input tile.
#include "stages/conv/course/plain.cuh"

#ifdef ENTRY_conv_map
extern "C" __global__ void __launch_bounds__(BLOCK_W* BLOCK_H, 1)
    conv_map(const float* x, const float* w, float* y) {
    const size_t n = blockIdx.x;
    const int m = blockIdx.y;
    for (int oy = threadIdx.y; oy < OH; oy += BLOCK_H) {
        for (int ox = threadIdx.x; ox < OW; ox += BLOCK_W) {
            float sum = 0.0f;
            for (int r = 0; r < R; ++r)
                for (int s = 0; s < S; ++s)
                    for (int c = 0; c < CH; ++c)
                        sum += plain_input(x, n, oy * STRIDE + r - PAD, ox * STRIDE + s - PAD, c) *
                               w[((r * S + s) * CH + c) * M + m];
            plain_output(y, n, oy, ox, m) = sum;
        }
    }
}
#endif

#if defined(ENTRY_conv_shared_constant) || defined(ENTRY_conv_four_maps)
constexpr int IN_H = (TILE_H - 1) * STRIDE + R;
constexpr int IN_W = (TILE_W - 1) * STRIDE + S;
constexpr int TILES_X = (OW + TILE_W - 1) / TILE_W;
constexpr int TILES = TILES_X * ((OH + TILE_H - 1) / TILE_H);
static_assert(IN_H * IN_W * 4 <= 48 * 1024, "the input tile must fit into shared memory");

__device__ __forceinline__ void load_tile(float (*tile)[IN_W], const float* x, size_t n, int y0,
                                          int x0, int c, int thread, int threads) {
    for (int i = thread; i < IN_H * IN_W; i += threads) {
        const int iy = y0 * STRIDE - PAD + i / IN_W, ix = x0 * STRIDE - PAD + i % IN_W;
        const bool inside = iy >= 0 && iy < H && ix >= 0 && ix < W;
        tile[i / IN_W][i % IN_W] = inside ? x[offset<READS, H, W, CH>(n, iy, ix, c)] : 0.0f;
    }
}
#endif

#ifdef ENTRY_conv_shared_constant
static_assert(!CONSTANT_FILTERS || K_SIZE * M * 4 <= 64 * 1024, "constant memory holds 64 KiB");
__constant__ float filters[CONSTANT_FILTERS ? K_SIZE * M : 1];

extern "C" __global__ void __launch_bounds__(BLOCK_W* BLOCK_H, MIN_BLOCKS)
    conv_shared_constant(const float* x, const float* w, float* y) {
    __shared__ float tile[IN_H][IN_W];
    const size_t n = blockIdx.x;
    const int m = blockIdx.y, part = blockIdx.z;
    const int y0 = part / TILES_X * TILE_H, x0 = part % TILES_X * TILE_W;
    const int ty = threadIdx.y, tx = threadIdx.x;
    const bool active = ty < TILE_H && tx < TILE_W && y0 + ty < OH && x0 + tx < OW;
    float sum = 0.0f;
    for (int c = 0; c < CH; ++c) {
        __syncthreads();
        load_tile(tile, x, n, y0, x0, c, ty * BLOCK_W + tx, BLOCK_W * BLOCK_H);
        __syncthreads();
        if (!active) continue;
        for (int r = 0; r < R; ++r)
            for (int s = 0; s < S; ++s) {
                const int k = ((r * S + s) * CH + c) * M + m;
                const float weight = CONSTANT_FILTERS ? filters[k] : w[k];
                sum += tile[ty * STRIDE + r][tx * STRIDE + s] * weight;
            }
    }
    if (active) plain_output(y, n, y0 + ty, x0 + tx, m) = sum;
}
#endif

#ifdef ENTRY_conv_four_maps
constexpr int MAPS = 4;
constexpr int GROUPS = (M + MAPS - 1) / MAPS;

extern "C" __global__ void __launch_bounds__(TILE_H* TILE_W* MAPS, 4)
    conv_four_maps(const float* __restrict__ x, const float* __restrict__ w,
                   float* __restrict__ y) {
    __shared__ float tile[IN_H][IN_W];
    const int part = blockIdx.x % TILES;
    const int group = blockIdx.x / TILES % GROUPS;
    const size_t n = blockIdx.x / TILES / GROUPS;
    const int y0 = part / TILES_X * TILE_H, x0 = part % TILES_X * TILE_W;
    const int thread = threadIdx.x;
    const int tx = thread % TILE_W, ty = thread / TILE_W % TILE_H;
    const int m = group * MAPS + thread / (TILE_W * TILE_H);
    const bool active = m < M && y0 + ty < OH && x0 + tx < OW;
    float sum = 0.0f;
    for (int c = 0; c < CH; ++c) {
        __syncthreads();
        load_tile(tile, x, n, y0, x0, c, thread, TILE_H * TILE_W * MAPS);
        __syncthreads();
        if (!active) continue;
        for (int r = 0; r < R; ++r)
            for (int s = 0; s < S; ++s)
                sum += tile[ty * STRIDE + r][tx * STRIDE + s] * w[((r * S + s) * CH + c) * M + m];
    }
    if (active) output_at(y, n, y0 + ty, x0 + tx, m) = sum;
}
#endif
