// Convolution of one-channel maps (C = 1), any stride and padding, output in NCHW.
// A thread keeps the inputs of TILE_W x TILE_H neighbouring outputs in registers and runs over the
// filters of its block's group, whose elements are in shared memory, [filter][RS rounded up to 4]:
// a 16-byte broadcast loads four elements for all of its outputs, and each filter ends in TILE_H stores
// of TILE_W floats, side by side with its neighbours'. Blocks: (outputs of a map, group of filters).
// Limits: OW is a multiple of TILE_W; the inputs of a thread fit into its registers.
#include "stages/conv/shape.cuh"

constexpr int RS = R * S;
constexpr int PITCH = (RS + 3) / 4 * 4;
constexpr int IN_ROWS = (TILE_H - 1) * STRIDE + R;
constexpr int IN_COLUMNS = (TILE_W - 1) * STRIDE + S;
constexpr int VECTORS = OW / TILE_W;                 // per output row
constexpr int STRIPS = (OH + TILE_H - 1) / TILE_H;
constexpr bool WIDE = STRIDE == 1 && PAD == 0 && W % TILE_W == 0 && IN_COLUMNS % TILE_W == 0;

static_assert(CH == 1, "one-channel maps");
static_assert(OW % TILE_W == 0, "a row is whole vectors");
static_assert(TILE_W == 1 || TILE_W == 2 || TILE_W == 4, "a store is 4, 8 or 16 bytes");
static_assert(IN_ROWS * IN_COLUMNS <= 96, "the inputs of a thread lie in registers");

template <int N>
struct Vector {
    float v[N];
};
template <>
struct __align__(16) Vector<4> {
    float v[4];
};
template <>
struct __align__(8) Vector<2> {
    float v[2];
};
using Out = Vector<TILE_W>;

__device__ __forceinline__ void load(float (&in)[IN_ROWS][IN_COLUMNS], const float* __restrict__ x,
                                     int top, int left) {
#pragma unroll
    for (int r = 0; r < IN_ROWS; ++r) {
        const int row = top + r;
        const bool inside = row >= 0 && row < H;
        if (WIDE) {
#pragma unroll
            for (int c = 0; c < IN_COLUMNS; c += TILE_W) {
                Out part{};
                if (inside) part = *reinterpret_cast<const Out*>(x + row * W + left + c);
#pragma unroll
                for (int i = 0; i < TILE_W; ++i) in[r][(c + i) % IN_COLUMNS] = part.v[i];
            }
        } else {
#pragma unroll
            for (int c = 0; c < IN_COLUMNS; ++c) {
                const int column = left + c;
                in[r][c] = inside && column >= 0 && column < W ? __ldg(x + row * W + column) : 0.0f;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    conv_single(const float* __restrict__ x, const float4* __restrict__ w, float* __restrict__ y,
                int vectors, int group) {
    extern __shared__ float4 elements[];              // [group][PITCH / 4]
    const int first = blockIdx.y * group;
    const int filters = min(group, M - first);
    for (int i = threadIdx.x; i < filters * (PITCH / 4); i += blockDim.x)
        elements[i] = w[first * (PITCH / 4) + i];

    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    const bool active = at < vectors;
    const int oy = at / VECTORS % STRIPS * TILE_H, ox = at % VECTORS * TILE_W;
    const size_t n = at / (VECTORS * STRIPS);
    float in[IN_ROWS][IN_COLUMNS];
    if (active) load(in, x + n * (H * W), oy * STRIDE - PAD, ox * STRIDE - PAD);
    __syncthreads();
    if (!active) return;

    float* out = y + ((n * M + first) * OH + oy) * OW + ox;
    for (int m = 0; m < filters; ++m, out += OH * OW) {
        float k[PITCH];
#pragma unroll
        for (int i = 0; i < PITCH / 4; ++i) {
            const float4 four = elements[m * (PITCH / 4) + i];
            k[4 * i] = four.x, k[4 * i + 1] = four.y, k[4 * i + 2] = four.z, k[4 * i + 3] = four.w;
        }
        Out sum[TILE_H];
#pragma unroll
        for (int rs = 0; rs < RS; ++rs)
#pragma unroll
            for (int j = 0; j < TILE_H; ++j)
#pragma unroll
                for (int i = 0; i < TILE_W; ++i) {
                    const float value = in[j * STRIDE + rs / S][i * STRIDE + rs % S];
                    sum[j].v[i] = rs == 0 ? value * k[0] : sum[j].v[i] + value * k[rs];
                }
#pragma unroll
        for (int j = 0; j < TILE_H; ++j)
            if (OH % TILE_H == 0 || oy + j < OH) *reinterpret_cast<Out*>(out + j * OW) = sum[j];
    }
}
