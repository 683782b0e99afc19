// Direct convolution whose input is a 3D texture (W, H, images x CH) with a border of zeros, so that
// no thread checks a bound (Tegra X1 slides, "per-thread pseudo code").
// A block computes BLOCK_MAPS maps of IMAGES_EACH regions of BLOCK_Y x BLOCK_X tiles; a thread
// TILE_H x TILE_W outputs of MAPS_EACH maps. STAGE channels of the footprint lie in shared memory
// while the next are fetched; coefficients, [CH][R][S][PADDED_MAPS], in two sets of registers.
// Where blocks are few, SPLIT warps of a block take a share of the channels each and add up.
// fill_texture: a thread copies a pixel of NCHW into the texture's array.
#include "stages/conv/shape.cuh"

#ifdef ENTRY_fill_texture
extern "C" __global__ void __launch_bounds__(FILL_THREADS)
    fill_texture(cudaSurfaceObject_t to, const float* __restrict__ x, int elements) {
    const int i = blockIdx.x * FILL_THREADS + threadIdx.x;
    if (i < elements) surf3Dwrite(x[i], to, i % W * 4, i / W % H, i / W / H);
}
#endif

#ifdef ENTRY_conv_texture
constexpr int PADDED_MAPS = (M + BLOCK_MAPS - 1) / BLOCK_MAPS * BLOCK_MAPS;
constexpr int LANES = BLOCK_MAPS / MAPS_EACH;
constexpr int TILES = IMAGES_EACH * BLOCK_Y * BLOCK_X;
constexpr int FOOT_H = (BLOCK_Y * TILE_H - 1) * STRIDE + R;
constexpr int FOOT_W = (BLOCK_X * TILE_W - 1) * STRIDE + S;
constexpr int PITCH = (FOOT_W + 3) / 4 * 4;
constexpr int PLANE = FOOT_H * PITCH;
constexpr int FOOT = FOOT_H * FOOT_W;
constexpr int UNIT = THREADS / SPLIT;                // threads that share a stage
constexpr int CHANNELS = CH / SPLIT;                 // of a unit
constexpr int FETCHES = (FOOT + UNIT - 1) / UNIT;    // positions of a channel, each thread
constexpr int STAGE_FLOATS = IMAGES_EACH * STAGE * PLANE;
constexpr int OUTPUTS = MAPS_EACH * TILE_H * TILE_W;
constexpr int SHARED_FLOATS = SPLIT * 2 * STAGE_FLOATS > (SPLIT - 1) * OUTPUTS * UNIT
                                  ? SPLIT * 2 * STAGE_FLOATS
                                  : (SPLIT - 1) * OUTPUTS * UNIT;
constexpr int REGIONS_X = (OW + BLOCK_X * TILE_W - 1) / (BLOCK_X * TILE_W);
constexpr int REGIONS_Y = (OH + BLOCK_Y * TILE_H - 1) / (BLOCK_Y * TILE_H);
constexpr int ROW = (TILE_W - 1) * STRIDE + S;              // pixels of a tile's input row
constexpr int ROWS = (TILE_H - 1) * STRIDE + FILTER_ROWS;   // input rows of one coefficient set
constexpr int SET = SET_CHANNELS * FILTER_ROWS * S;         // coefficients of one set, per map
constexpr int SETS = STAGE / SET_CHANNELS * (R / FILTER_ROWS);
constexpr int SETS_PER_CHANNEL = R / FILTER_ROWS;

static_assert(READS == NCHW && WRITES == NCHW, "a plane of the texture is a channel");
static_assert(TILE_W == 4 || TILE_W == 8, "a tile's row starts and ends at 16 bytes");
static_assert(BLOCK_MAPS % MAPS_EACH == 0 && MAPS_EACH <= 8, "lanes divide a block's maps");
static_assert(!PAIRED_STORES || (TILE_W == 8 && OW % 4 == 0), "a pair of lanes writes 32 bytes");
static_assert(UNIT % 32 == 0 && UNIT >= TILES * LANES, "a thread for every tile and lane");
static_assert(SPLIT == 1 || UNIT == 32, "a unit that is no block is in step as a warp");
static_assert(CH % SPLIT == 0 && CHANNELS % STAGE == 0, "whole stages fill a unit's channels");
static_assert(STAGE % SET_CHANNELS == 0, "whole sets fill a stage");
static_assert(R % FILTER_ROWS == 0, "whole filter rows fill a set");
static_assert(SET_CHANNELS == 1 || FILTER_ROWS == R, "a set of several channels takes whole ones");
static_assert(SHARED_FLOATS * 4 <= 48 * 1024, "two stages, or a block's sums, in shared memory");

struct Origin {
    int n, y, x, m, c, thread;  // first image, output row, column, map, channel; thread of the unit
};

__device__ __forceinline__ Origin origin() {
    constexpr int GROUPS = PADDED_MAPS / BLOCK_MAPS;
    const int region = blockIdx.x / GROUPS % (REGIONS_Y * REGIONS_X);
    return {int(blockIdx.x / (GROUPS * REGIONS_Y * REGIONS_X)) * IMAGES_EACH,
            region / REGIONS_X * BLOCK_Y * TILE_H, region % REGIONS_X * BLOCK_X * TILE_W,
            int(blockIdx.x % GROUPS) * BLOCK_MAPS, int(threadIdx.x) / UNIT * CHANNELS,
            int(threadIdx.x) % UNIT};
}

struct Pixels {
    float at[FETCHES][IMAGES_EACH][STAGE];
};

__device__ __forceinline__ void fetch(Pixels& p, cudaTextureObject_t input, Origin at, int c) {
#pragma unroll
    for (int f = 0; f < FETCHES; ++f) {
        const int i = at.thread + f * UNIT;
        if (FOOT % UNIT != 0 && i >= FOOT) break;
        const float x = at.x * STRIDE - PAD + i % FOOT_W + 0.5f;
        const float y = at.y * STRIDE - PAD + i / FOOT_W + 0.5f;
#pragma unroll
        for (int image = 0; image < IMAGES_EACH; ++image)
#pragma unroll
            for (int s = 0; s < STAGE; ++s)
                p.at[f][image][s] =
                    tex3D<float>(input, x, y, (at.n + image) * CH + at.c + c + s + 0.5f);
    }
}

__device__ __forceinline__ void stage(float* shared, const Pixels& p, int thread) {
#pragma unroll
    for (int f = 0; f < FETCHES; ++f) {
        const int i = thread + f * UNIT;
        if (FOOT % UNIT != 0 && i >= FOOT) break;
#pragma unroll
        for (int k = 0; k < IMAGES_EACH * STAGE; ++k)
            shared[k * PLANE + i / FOOT_W * PITCH + i % FOOT_W] = p.at[f][k / STAGE][k % STAGE];
    }
}

struct Coefficients {
    float at[SET][MAPS_EACH];
};

__device__ __forceinline__ void load(Coefficients& c, const float* __restrict__ from) {
#pragma unroll
    for (int t = 0; t < SET; ++t) {
        const float* row = from + t * PADDED_MAPS;
        if constexpr (MAPS_EACH == 1) {
            c.at[t][0] = __ldg(row);
        } else if constexpr (MAPS_EACH == 2) {
            const float2 v = __ldg(reinterpret_cast<const float2*>(row));
            c.at[t][0] = v.x, c.at[t][1] = v.y;
        } else {
#pragma unroll
            for (int m = 0; m < MAPS_EACH; m += 4) {
                const float4 v = __ldg(reinterpret_cast<const float4*>(row + m));
                c.at[t][m] = v.x, c.at[t][m + 1] = v.y, c.at[t][m + 2] = v.z, c.at[t][m + 3] = v.w;
            }
        }
    }
}

struct Sums {
    float at[MAPS_EACH][TILE_H][TILE_W];
};

__device__ __forceinline__ void load_row(float (&row)[ROW], const float* from) {
#pragma unroll
    for (int x = 0; x < ROW; x += 4) {
        if (x + 2 < ROW) {
            const float4 v = *reinterpret_cast<const float4*>(from + x);
            row[x] = v.x, row[x + 1] = v.y, row[x + 2] = v.z;
            if (x + 3 < ROW) row[x + 3] = v.w;
        } else if (x + 1 < ROW) {
            const float2 v = *reinterpret_cast<const float2*>(from + x);
            row[x] = v.x, row[x + 1] = v.y;
        } else {
            row[x] = from[x];
        }
    }
}

__device__ __forceinline__ void multiply(Sums& sums, const Coefficients& c, const float* pixels) {
#pragma unroll
    for (int channel = 0; channel < SET_CHANNELS; ++channel)
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            float row[ROW];
            load_row(row, pixels + channel * PLANE + i * PITCH);
#pragma unroll
            for (int r = 0; r < FILTER_ROWS; ++r) {
                if (i < r || (i - r) % STRIDE != 0 || (i - r) / STRIDE >= TILE_H) continue;
#pragma unroll
                for (int s = 0; s < S; ++s)
#pragma unroll
                    for (int m = 0; m < MAPS_EACH; ++m)
#pragma unroll
                        for (int x = 0; x < TILE_W; ++x)
                            sums.at[m][(i - r) / STRIDE][x] +=
                                row[x * STRIDE + s] *
                                c.at[(channel * FILTER_ROWS + r) * S + s][m];
            }
        }
}

// Of a row of eight, neighbouring lanes write one map's 32 bytes, then the other's.
__device__ __forceinline__ void store_pair(float* __restrict__ y, const float* row, bool wanted,
                                           size_t n, int m, int oy, int ox) {
    const bool odd = threadIdx.x & 1;
    float4 kept = odd ? make_float4(row[4], row[5], row[6], row[7])
                      : make_float4(row[0], row[1], row[2], row[3]);
    float4 given = odd ? make_float4(row[0], row[1], row[2], row[3])
                       : make_float4(row[4], row[5], row[6], row[7]);
    given.x = __shfl_xor_sync(~0u, given.x, 1), given.y = __shfl_xor_sync(~0u, given.y, 1);
    given.z = __shfl_xor_sync(~0u, given.z, 1), given.w = __shfl_xor_sync(~0u, given.w, 1);
    const int x = ox + 4 * odd, even_map = odd ? m - MAPS_EACH : m;
    wanted &= oy < OH && x < OW;
    if (wanted && even_map < M)
        *reinterpret_cast<float4*>(&output_at(y, n, oy, x, even_map)) = odd ? given : kept;
    if (wanted && even_map + MAPS_EACH < M)
        *reinterpret_cast<float4*>(&output_at(y, n, oy, x, even_map + MAPS_EACH)) =
            odd ? kept : given;
}

// Called by whole warps; `wanted` where the thread's tile and image exist.
__device__ __forceinline__ void store(float* __restrict__ y, const Sums& sums, bool wanted,
                                      size_t n, int m, int oy, int ox) {
#pragma unroll
    for (int i = 0; i < MAPS_EACH; ++i)
#pragma unroll
        for (int j = 0; j < TILE_H; ++j) {
            const float* row = sums.at[i][j];
            if constexpr (PAIRED_STORES) {
                store_pair(y, row, wanted, n, m + i, oy + j, ox);
                continue;
            }
            if (!wanted || m + i >= M || oy + j >= OH) continue;
            float* to = &output_at(y, n, oy + j, ox, m + i);
            if constexpr (OW % 4 == 0) {
#pragma unroll
                for (int x = 0; x < TILE_W; x += 4)
                    if (ox + x < OW)
                        *reinterpret_cast<float4*>(to + x) =
                            make_float4(row[x], row[x + 1], row[x + 2], row[x + 3]);
            } else {
#pragma unroll
                for (int x = 0; x < TILE_W; ++x)
                    if (ox + x < OW) to[x] = row[x];
            }
        }
}

__device__ __forceinline__ void wait_for_unit() {
    if constexpr (SPLIT == 1) __syncthreads();
    else __syncwarp();
}

// The sums of all units, in the first one's registers.
__device__ __forceinline__ void add_units(Sums& sums, float* shared, int thread) {
    constexpr int TILE = TILE_H * TILE_W;
    const int unit = threadIdx.x / UNIT;
    float* const row = shared + (unit - 1) * OUTPUTS * UNIT + thread;
    __syncthreads();
    if (unit > 0) {
#pragma unroll
        for (int i = 0; i < OUTPUTS; ++i)
            row[i * UNIT] = sums.at[i / TILE][i % TILE / TILE_W][i % TILE_W];
    }
    __syncthreads();
    if (unit > 0) return;
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i)
#pragma unroll
        for (int other = 1; other < SPLIT; ++other)
            sums.at[i / TILE][i % TILE / TILE_W][i % TILE_W] += row[(other * OUTPUTS + i) * UNIT];
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_texture(cudaTextureObject_t input, const float* __restrict__ w, float* __restrict__ y,
                 int n) {
    __shared__ alignas(16) float shared[SHARED_FLOATS];
    const Origin at = origin();
    const int tile = at.thread / LANES, m = at.m + at.thread % LANES * MAPS_EACH;
    const int image = tile / (BLOCK_Y * BLOCK_X) % IMAGES_EACH;
    const int ty = tile / BLOCK_X % BLOCK_Y * TILE_H, tx = tile % BLOCK_X * TILE_W;
    const int mine = image * STAGE * PLANE + ty * STRIDE * PITCH + tx * STRIDE;
    float* const pixels = shared + threadIdx.x / UNIT * 2 * STAGE_FLOATS;
    const float* coefficients = w + size_t(at.c) * R * S * PADDED_MAPS + m;

    Pixels next;
    fetch(next, input, at, 0);
    Coefficients front, back;
    load(front, coefficients);
    Sums sums = {};
    stage(pixels, next, at.thread);
    wait_for_unit();
    for (int c = 0, half = 0; c < CHANNELS; c += STAGE, half ^= 1) {
        if (c + STAGE < CHANNELS) fetch(next, input, at, c + STAGE);
#pragma unroll 2
        for (int set = 0; set < SETS; ++set) {
            coefficients += SET * PADDED_MAPS;
            load(back, coefficients);
            multiply(sums, front,
                     pixels + half * STAGE_FLOATS + mine +
                         set / SETS_PER_CHANNEL * SET_CHANNELS * PLANE +
                         set % SETS_PER_CHANNEL * FILTER_ROWS * PITCH);
            front = back;
        }
        if (c + STAGE < CHANNELS) {
            stage(pixels + (half ^ 1) * STAGE_FLOATS, next, at.thread);
            wait_for_unit();
        }
    }
    if constexpr (SPLIT > 1) {
        add_units(sums, shared, at.thread);
        if (threadIdx.x >= UNIT) return;
    }
    const bool wanted = tile < TILES && at.n + image < n;
    store(y, sums, wanted, at.n + image, m, at.y + ty, at.x + tx);
}
#endif
