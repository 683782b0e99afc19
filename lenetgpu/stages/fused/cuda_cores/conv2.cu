// conv2, ReLU and pool2 in fp32 on CUDA cores, by Winograd F(4x4,5x5): 64 products for 16 outputs
// instead of 400. A block walks over groups of 8 images whose tiles conv1 left transformed
// (tiles.cuh); per row of points, warp x multiplies point (y, x), 32 tiles by 64 maps in 8x8
// register tiles; then a thread owns a tile and 8 maps and transforms back. Writes sums of 2x2
// windows, [image][position][map]: pool2's 1/4 is in fc1's weights, pool1's in these. Any count.
#include "gpu/ptx/async.cuh"
#include "stages/fused/cuda_cores/tiles.cuh"

constexpr int MAPS2 = 64, TILES = GROUP * IMAGE_TILES;
constexpr int WARPS = POINTS;                            // one for each point of a row
constexpr int STEPS = MAPS1 / BK;                        // copies per point
constexpr int IMAGE_PITCH = (BK + 1) * IMAGE_TILES;      // neighbours 4 banks apart
constexpr int STAGE_TILES = GROUP * IMAGE_PITCH;         // [image][channel][tile]
constexpr int STAGE = STAGE_TILES + BK * MAPS2;          // and [channel][map]
constexpr int HALF = MAPS2 / 2;
constexpr int TILE_PITCH = HALF + 4;                     // tiles 4 apart half the banks apart
constexpr int EXCHANGE = POINTS * TILES * TILE_PITCH;    // [point][tile][map of one half], maps
                                                         // swapped in pairs against register
                                                         // bank conflicts with their weights
static_assert(THREADS == WARPS * WARP, "a warp per point");
static_assert(TILES == 32 && MAPS2 == 64, "a warp's 4x8 lanes hold 8x8 products each");
static_assert(MAPS1 % BK == 0 && BK % 2 == 0 && STAGES >= 2, "whole copies, one ahead");
static_assert(BUFFERS == 1 || BUFFERS == 2, "with two, a store need not wait for the gathering");
static_assert(SHARED_BYTES == 4 * (STAGES * WARPS * STAGE + BUFFERS * EXCHANGE),
              "the launcher's layout differs");

// Powers 0 to 3 of the points: the output transform down a column.
__constant__ float4 powers[POINTS] = {{1, 0, 0, 0},  {1, 1, 1, 1},   {1, -1, 1, -1},
                                      {1, 2, 4, 8},  {1, -2, 4, -8}, {1, .5f, .25f, .125f},
                                      {1, -.5f, .25f, -.125f},       {0, 0, 0, 1}};

__device__ __forceinline__ void load8(const float* p, int apart, float (&d)[8]) {
    const float4 lo = *reinterpret_cast<const float4*>(p);
    const float4 hi = *reinterpret_cast<const float4*>(p + apart);
    d[0] = lo.x, d[1] = lo.y, d[2] = lo.z, d[3] = lo.w;
    d[4] = hi.x, d[5] = hi.y, d[6] = hi.z, d[7] = hi.w;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    plain_conv2(const float* __restrict__ tiles, const float* __restrict__ weights,
                float* __restrict__ features, int count) {
    extern __shared__ float4 shared[];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float* stages = reinterpret_cast<float*>(shared) + warp * STAGES * STAGE;
    float* exchange = reinterpret_cast<float*>(shared) + WARPS * STAGES * STAGE;
    const float* v = tiles + static_cast<size_t>(blockIdx.x) * (POINTS * POINT_COLUMN) +
                     warp * POINT_COLUMN + lane * 4;
    const float* u = weights + warp * (POINTS * MAPS1 * MAPS2) + lane * 4;
    float* v_to = stages + lane / BK * IMAGE_PITCH + lane % BK * IMAGE_TILES;
    float* u_to = stages + STAGE_TILES + lane * 4;

    const int groups = (count + GROUP - 1) / GROUP;
    const ptrdiff_t stride = static_cast<ptrdiff_t>(gridDim.x) * (POINTS * POINT_COLUMN);
    int to_fetch = blockIdx.x, copied = 0;
    auto fetch = [&](int stage) {
        if (to_fetch >= groups) return;
#pragma unroll
        for (int at = 0; at < BK * TILES; at += 4 * WARP)
            ptx::copy16(v_to + stage * STAGE + at / (BK * IMAGE_TILES) * IMAGE_PITCH, v + at);
#pragma unroll
        for (int at = 0; at < BK * MAPS2; at += 4 * WARP)
            ptx::copy16(u_to + stage * STAGE + at, u + at);
        v += BK * TILES;
        u += BK * MAPS2;
        if (++copied == POINTS * STEPS) {
            copied = 0;
            to_fetch += gridDim.x;
            v += stride - POINT_COLUMN;
            u -= POINTS * MAPS1 * MAPS2;
        }
    };
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) {
        fetch(stage);
        ptx::copy_commit();
    }

    // Lanes whose 16-byte loads agree are neighbours: 128 bytes serve half a warp.
    const int tile_lane = lane % 2 + lane / 16 * 2, map_lane = lane / 2 % 8;
    const int own_tile = warp * IMAGE_TILES + lane / 8, own_map = lane % 8 * 4;
    float out[2][OUTPUTS][OUTPUTS][4];
    const float* a = stages + tile_lane * IMAGE_PITCH;
    const float* b = stages + STAGE_TILES + map_lane * 4;
    float x[2][8], y[2][8];
    auto load = [&](int to, int c) {
        load8(a + c * IMAGE_TILES, GROUP / 2 * IMAGE_PITCH, x[to]);
        load8(b + c * MAPS2, HALF, y[to]);
    };
    auto store = [&](const float (&sum)[8][8], int half) {
#pragma unroll
        for (int m = 0; m < 8; ++m) {
            const int tile = m / 4 * (TILES / 2) + tile_lane * 4 + m % 4;
            *reinterpret_cast<float4*>(exchange + half % BUFFERS * EXCHANGE +
                                       (warp * TILES + tile) * TILE_PITCH + map_lane * 4) =
                make_float4(sum[m][4 * half + 1], sum[m][4 * half], sum[m][4 * half + 3],
                            sum[m][4 * half + 2]);
        }
    };
    float product[4][POINTS];
    auto gather = [&](int half) {
#pragma unroll
        for (int j = 0; j < POINTS; ++j) {
            const float4 four = *reinterpret_cast<const float4*>(
                exchange + half % BUFFERS * EXCHANGE + (j * TILES + own_tile) * TILE_PITCH +
                own_map);
            product[1][j] = four.x, product[0][j] = four.y;
            product[3][j] = four.z, product[2][j] = four.w;
        }
    };
    auto add = [&](float4 down, int half) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float across[OUTPUTS];
            transform_output(product[e], across);
#pragma unroll
            for (int x = 0; x < OUTPUTS; ++x) {
                out[half][0][x][e] = fmaf(down.x, across[x], out[half][0][x][e]);
                out[half][1][x][e] = fmaf(down.y, across[x], out[half][1][x][e]);
                out[half][2][x][e] = fmaf(down.z, across[x], out[half][2][x][e]);
                out[half][3][x][e] = fmaf(down.w, across[x], out[half][3][x][e]);
            }
        }
    };
    ptx::copy_wait<STAGES - 1>();
    __syncwarp();
    load(0, 0);
    int stage = 0;
#pragma unroll 1
    for (int group = blockIdx.x; group < groups; group += gridDim.x) {
#pragma unroll
        for (int k = 0; k < 2 * OUTPUTS * OUTPUTS * 4; ++k) (&out[0][0][0][0])[k] = 0.0f;
#pragma unroll 1
        for (int i = 0; i < POINTS; ++i) {
            float sum[8][8] = {};
#pragma unroll 1
            for (int step = 0; step < STEPS; ++step) {
#pragma unroll
                for (int c = 0; c < BK; ++c) {
                    if (c + 1 < BK) {
                        load((c + 1) % 2, c + 1);
                    } else {
                        ptx::copy_wait<STAGES - 2>();
                        __syncwarp();
                        const int next = stage + 1 == STAGES ? 1 - STAGES : 1;
                        a += next * STAGE;
                        b += next * STAGE;
                        load((c + 1) % 2, 0);
                        fetch(stage);
                        ptx::copy_commit();
                        stage += next;
                    }
#pragma unroll
                    for (int m = 0; m < 8; ++m)
#pragma unroll
                        for (int turn = 0; turn < 8; ++turn) {
                            const int n = m % 2 ? 7 - turn : turn;
                            sum[m][n] = fmaf(x[c % 2][m], y[c % 2][n], sum[m][n]);
                        }
                }
            }
            const float4 down = powers[i];
            store(sum, 0);
            __syncthreads();
            gather(0);
            if (BUFFERS == 1) __syncthreads();
            store(sum, 1);
            add(down, 0);
            __syncthreads();
            gather(1);
            add(down, 1);
            if (BUFFERS == 1) __syncthreads();
        }

        const int n = group * GROUP + warp;
        if (n >= count) continue;
        const int ty = lane / 16, tx = lane / 8 % 2;
        float* image = features + static_cast<size_t>(n) * (16 * MAPS2) + own_map;
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int y = 0; y < 2; ++y)
#pragma unroll
                for (int x = 0; x < 2; ++x) {
                    float four[4];
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        four[e] = relu_sum(out[h][2 * y][2 * x][e], out[h][2 * y][2 * x + 1][e],
                                           out[h][2 * y + 1][2 * x][e],
                                           out[h][2 * y + 1][2 * x + 1][e]);
                    const int pixel = (2 * ty + y) * 4 + 2 * tx + x;
                    *reinterpret_cast<float4*>(image + pixel * MAPS2 + h * HALF) =
                        make_float4(four[0], four[1], four[2], four[3]);
                }
    }
}
