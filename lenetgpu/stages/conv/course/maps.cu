// Direct convolution with the course report's blocks (section 2.1.4, table 4, figures 3 and 5).
// conv_whole_warps: a thread loads an element of the input tile, 28x28 for conv1; its outputs go to
//   the first threads in a row, 24 * 24 = 18 warps, so that a warp computes whole or not at all.
// conv_side_by_side: a block holds one input tile and computes 8x8 of MAPS_X x MAPS_Y maps from it,
//   threads (x, y) the output (y % 8, x % 8) of map (y / 8, x / 8): [16,12] threads with 2 x 1 maps
//   (figure 5, rows 8 to 11 only load) and [16,16] with 2 x 2 (figure 3).
// Grids are [images,groups of maps], the images fastest; pointers are plain: y might be x or w.
// From -D TILE_H, TILE_W, BLOCK_H, and BLOCK_W, CONSTANT_FILTERS or MAPS_X, MAPS_Y; MIN_BLOCKS (per SM).
#include "stages/conv/course/plain.cuh"

constexpr int ROWS = (TILE_H - 1) * STRIDE + R;
constexpr int COLUMNS = (TILE_W - 1) * STRIDE + S;
constexpr int PARTS_X = (OW + TILE_W - 1) / TILE_W;
static_assert(ROWS * COLUMNS * 4 <= 48 * 1024, "the input tile must fit into shared memory");

struct Origin {
    size_t n;
    int group, y, x;
};

__device__ __forceinline__ Origin origin() {
    const int part = blockIdx.z;
    return {blockIdx.x, int(blockIdx.y), part / PARTS_X * TILE_H, part % PARTS_X * TILE_W};
}

template <int WIDTH>
__device__ __forceinline__ void load(float (*tile)[COLUMNS], const float* x, Origin at, int c) {
    for (int r = threadIdx.y; r < ROWS; r += BLOCK_H)
        for (int s = threadIdx.x; s < COLUMNS; s += WIDTH) {
            const int iy = at.y * STRIDE - PAD + r, ix = at.x * STRIDE - PAD + s;
            const bool inside = iy >= 0 && iy < H && ix >= 0 && ix < W;
            tile[r][s] = inside ? plain_input(x, at.n, iy, ix, c) : 0.0f;
        }
}

#ifdef ENTRY_conv_whole_warps
static_assert(TILE_H * TILE_W <= BLOCK_H * BLOCK_W, "a thread an output");
__constant__ float filters[CONSTANT_FILTERS ? K_SIZE * M : 1];

extern "C" __global__ void __launch_bounds__(BLOCK_W* BLOCK_H, MIN_BLOCKS)
    conv_whole_warps(const float* x, const float* w, float* y) {
    __shared__ float tile[ROWS][COLUMNS];
    const Origin at = origin();
    const int thread = threadIdx.y * BLOCK_W + threadIdx.x;
    const int ty = thread / TILE_W, tx = thread % TILE_W;
    const bool computes = ty < TILE_H && at.y + ty < OH && at.x + tx < OW;
    float sum = 0.0f;
    for (int c = 0; c < CH; ++c) {
        __syncthreads();
        load<BLOCK_W>(tile, x, at, c);
        __syncthreads();
        for (int i = 0; computes && i < R * S; ++i) {
            const int k = (i * CH + c) * M + at.group;
            const float weight = CONSTANT_FILTERS ? filters[k] : w[k];
            sum += tile[ty * STRIDE + i / S][tx * STRIDE + i % S] * weight;
        }
    }
    if (computes) plain_output(y, at.n, at.y + ty, at.x + tx, at.group) = sum;
}
#endif

#ifdef ENTRY_conv_side_by_side
constexpr int TOGETHER = MAPS_X * MAPS_Y;
static_assert(BLOCK_H >= MAPS_Y * TILE_H, "a thread an output");

extern "C" __global__ void __launch_bounds__(MAPS_X* TILE_W* BLOCK_H)
    conv_side_by_side(const float* x, const float* w, float* y) {
    __shared__ float tile[ROWS][COLUMNS];
    const Origin at = origin();
    const int my = threadIdx.y / TILE_H, mx = threadIdx.x / TILE_W;
    const int ty = threadIdx.y % TILE_H, tx = threadIdx.x % TILE_W;
    const int m = at.group * TOGETHER + my * MAPS_X + mx;
    const bool computes = my < MAPS_Y && m < M && at.y + ty < OH && at.x + tx < OW;
    float sum = 0.0f;
    for (int c = 0; c < CH; ++c) {
        __syncthreads();
        load<MAPS_X * TILE_W>(tile, x, at, c);
        __syncthreads();
        for (int r = 0; computes && r < R; ++r)
            for (int s = 0; s < S; ++s)
                sum += tile[ty * STRIDE + r][tx * STRIDE + s] * w[((r * S + s) * CH + c) * M + m];
    }
    if (computes) plain_output(y, at.n, at.y + ty, at.x + tx, m) = sum;
}
#endif
