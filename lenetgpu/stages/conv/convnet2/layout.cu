// Relayouts around cuda-convnet2's kernels: `count` matrices (rows, columns) to (columns, pitch),
// transposed, zeros in columns `rows` to `pitch` - 1. NCHW to images innermost is one matrix
// (N, C*H*W); to padded NHWC it is N matrices (C, H*W). A block moves a 32x32 tile through shared
// memory, so that reads and writes are both along rows.
constexpr int TILE = 32;
static_assert(TILE % ROWS == 0, "a thread moves TILE / ROWS elements");

extern "C" __global__ void __launch_bounds__(TILE* ROWS)
    conv_transpose(const float* __restrict__ from, float* __restrict__ to, int rows, int columns,
                   int pitch, int tiles_down, int tiles_across) {
    __shared__ float tile[TILE][TILE + 1];
    const int down = blockIdx.x % tiles_down * TILE;
    const int across = blockIdx.x / tiles_down % tiles_across * TILE;
    const size_t matrix = blockIdx.x / tiles_down / tiles_across;
    const float* source = from + matrix * rows * columns;
    float* target = to + matrix * columns * pitch;
    for (int i = threadIdx.y; i < TILE; i += ROWS) {
        const int row = down + i, column = across + threadIdx.x;
        tile[i][threadIdx.x] =
            row < rows && column < columns ? source[size_t(row) * columns + column] : 0.0f;
    }
    __syncthreads();
    for (int i = threadIdx.y; i < TILE; i += ROWS) {
        const int row = across + i, column = down + threadIdx.x;
        if (row < columns && column < pitch)
            target[size_t(row) * pitch + column] = tile[threadIdx.x][i];
    }
}
