// Images to split fp16 (high and low), scaled by powers of two: each image by its largest input, each
// channel by the exponent that its filters need (`in_scales`), to avoid overflow and loss of accuracy.
// tensor_largest: SHARES blocks an image, each finds the largest exponent of its share, or of every
// SAMPLE-th line of it. Then there is room for inputs 2^HEAD times as large; an image with larger ones says so
// (`beyond`), and tensor_resplit splits it once more, by its largest.
// tensor_split: a thread a vector of 8 channels (packed.cuh); any C, zeros after the last channel. A
// warp takes ALONG pixels of ACROSS neighbouring vectors: at NCHW its lanes read ALONG floats of a row, at
// NHWC ACROSS vectors of a pixel, and write one or the other, so that whole sectors are read and written.
// WINOGRAD: a thread makes the four transform points of two output columns from four inputs in a row.
#include "stages/conv/tensor/packed.cuh"

constexpr int WARPS = THREADS / 32;

static_assert(THREADS % 32 == 0 && WARPS <= 32, "a block is whole warps, joined by one");
static_assert(SHARES > 0 && (SHARES & (SHARES - 1)) == 0, "lanes of a warp take an image's shares in turn");

__device__ __forceinline__ u32 biased(int exponent) { return u32(exponent - NO_EXPONENT); }

constexpr int LINE = 32;                      // lanes of a warp, whose inputs lie side by side

#ifdef ENTRY_tensor_largest
constexpr u32 INPUTS = u32(H) * W * CH;       // fewer than 2^30
constexpr int ALONG = READS == NHWC ? CH : H * W;
constexpr int WIDE = ALONG % 4 == 0 ? 4 : 1;
constexpr u32 READ = (INPUTS / WIDE + LINE * SAMPLE - 1) / (LINE * SAMPLE) * LINE;
constexpr int NEXT = READS == NHWC;           // from an input's channel to that of the next of WIDE

__device__ __forceinline__ int channel_of(u32 i) {
    return READS == NHWC ? i % CH : i / (u32(H) * W);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    tensor_largest(const Held* __restrict__ x, const int* __restrict__ in_scales,
                   u32* __restrict__ found, u32* __restrict__ reached, u32* __restrict__ beyond) {
    __shared__ u32 of_warp[WARPS];
    follow();
    const int image = blockIdx.x / SHARES, share = blockIdx.x % SHARES;
    const Held* from = x + size_t(image) * INPUTS;
    u32 most = 0;
    const auto count = [&](float v, int channel) {
        const int exponent = exponent_of(v);
        if (exponent != NO_EXPONENT) most = max(most, biased(exponent + in_scales[channel]));
    };
#pragma unroll 8
    for (u32 at = share * THREADS + threadIdx.x; at < READ; at += SHARES * THREADS) {
        const u32 line = at / LINE, i = ((line * SAMPLE + line % SAMPLE) * LINE + at % LINE) * WIDE;
        if (i >= INPUTS) continue;
        const int channel = channel_of(i);
        if (WIDE == 4) {
            const float4 four = four_at(from + i);
            count(four.x, channel), count(four.y, channel + NEXT);
            count(four.z, channel + 2 * NEXT), count(four.w, channel + 3 * NEXT);
        } else {
            count(Value::load(from[i]), channel);
        }
    }
    most = __reduce_max_sync(~0u, most);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x < 32) {
        most = __reduce_max_sync(~0u, threadIdx.x < WARPS ? of_warp[threadIdx.x] : 0);
        if (threadIdx.x == 0) {
            found[blockIdx.x] = most;
            if (share == 0) reached[image] = beyond[image] = 0;
        }
    }
}
#endif

#if defined(ENTRY_tensor_split) || defined(ENTRY_tensor_resplit)
constexpr int ALONG = 32 / ACROSS;
constexpr int COLUMNS = H * WP;               // of an image
constexpr int RUNS = (COLUMNS + ALONG - 1) / ALONG;
constexpr bool QUADS = READS == NHWC && !FOLD && CH % 4 == 0;

static_assert(FILLED % ACROSS == 0, "a warp's vectors are there");
static_assert(BLOCKS * WARPS >= RUNS * (FILLED / ACROSS), "every vector has a thread");

__device__ __forceinline__ float input_of(const Held* __restrict__ x, size_t image, int y, int col,
                                          int channel) {
    if (!FOLD) return channel < CH ? Value::load(x[offset<READS, H, W, CH>(image, y, col, channel)]) : 0.0f;
    if (channel >= S * CH) return 0.0f;
    return value_at(x, image, y, col * STRIDE - PAD + channel / CH, channel % CH);
}
__device__ __forceinline__ void inputs_of(float (&v)[VEC], const Held* __restrict__ x, size_t image,
                                          int y, int col, int first) {
#pragma unroll
    for (int c = 0; c < VEC; c += QUADS ? 4 : 1) {
        if constexpr (QUADS) {
            float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
            if (first + c < CH) four = four_at(x + offset<READS, H, W, CH>(image, y, col, first + c));
            v[c] = four.x, v[c + 1] = four.y, v[c + 2] = four.z, v[c + 3] = four.w;
        } else {
            v[c] = input_of(x, image, y, col, first + c);
        }
    }
}

// Of 8 channels, the inputs of two output columns: columns 2 col - PAD to 2 col - PAD + 3.
__device__ __forceinline__ void row_of(float (&v)[POINTS][VEC], const Held* __restrict__ x,
                                       size_t image, int y, int col, int first) {
#pragma unroll
    for (int p = 0; p < POINTS; ++p) {
        const int at = ACROSS_X * col - PAD + p;
        if (at >= 0 && at < W) inputs_of(v[p], x, image, y, at, first);
    }
}

// The largest of a lane's part of an image's shares.
__device__ __forceinline__ u32 largest_of(const u32* __restrict__ found, int lane) {
    u32 most = found[lane % SHARES];
#pragma unroll
    for (int i = 32; i < SHARES; i += 32) most = max(most, found[i + lane]);
    return most;
}

// The inputs of a vector of channels from `first` on, or of its points.
__device__ __forceinline__ void vec_of(float (&v)[POINTS][VEC], const Held* __restrict__ x,
                                        size_t image, int y, int col, int first) {
    if constexpr (WINOGRAD) row_of(v, x, image, y, col, first);
    else inputs_of(v[0], x, image, y, col, first);
}
__device__ __forceinline__ int in_scale_of(const int* __restrict__ in_scales, int channel) {
    return in_scales[FOLD ? channel % CH : min(channel, CH - 1)];
}

// The largest input of a vector that is a number, biased.
__device__ __forceinline__ u32 largest_of_vec(const Held* __restrict__ x, const int* __restrict__ in_scales,
                                               size_t image, int y, int col, int first) {
    u32 most = 0;
    float v[POINTS][VEC] = {};
    vec_of(v, x, image, y, col, first);
    for (int c = 0; c < VEC; ++c)
        for (int p = 0; p < POINTS; ++p) {
            const int exponent = exponent_of(v[p][c]);
            if (exponent != NO_EXPONENT) most = max(most, biased(exponent + in_scale_of(in_scales, first + c)));
        }
    return most;
}

// A warp's part of an image whose inputs are less than 2^(most + NO_EXPONENT), unless WATCHED: then what is
// larger goes to `beyond`. `plane`: positions from one plane to the next.
template <bool WATCHED>
__device__ __forceinline__ void split(const Held* __restrict__ x, const int* __restrict__ in_scales, u32 most,
                                      int* __restrict__ exponents, uint4* __restrict__ packed, int plane,
                                      u32* __restrict__ beyond, int image, int part) {
    const int lane = threadIdx.x % 32, warp = part * WARPS + threadIdx.x / 32;
    const int pixel = warp % RUNS * ALONG + lane / ACROSS;
    const int group = warp / RUNS * ACROSS + lane % ACROSS, first = group * VEC;
    const int y = pixel / WP, col = pixel % WP;
    const int top_row = PLANES ? y + PAD : y, left = PLANES ? col + PAD_X : col;
    const int phase_y = PLANES ? top_row % STRIDE : 0, row = PLANES ? top_row / STRIDE : y;
    const int phase_x = PLANES && !WINOGRAD ? left % STEP_X : 0;
    const int column = PLANES && !WINOGRAD ? left / STEP_X : col;
    const bool read = phase_y < PHASES_Y && phase_x < PHASES_X && row < SLOT / PITCH && column < PITCH;
    const int exponent = most ? int(most) + NO_EXPONENT + WINOGRAD : NO_EXPONENT;  // a point is a sum of two
    if (part == 0 && threadIdx.x == 0) exponents[image] = exponent;
    if (pixel >= COLUMNS || group >= FILLED || !read) return;
    float v[POINTS][VEC] = {}, largest = 0.0f;
    vec_of(v, x, image, y, col, first);
    const int shift = FP16_EXPONENT - (most ? exponent : 0);
#pragma unroll
    for (int c = 0; c < VEC; ++c) {
        const int scale = shift + in_scale_of(in_scales, first + c);
#pragma unroll
        for (int p = 0; p < POINTS; ++p) {
            v[p][c] = times_power(v[p][c], scale);
            largest = fmaxf(largest, fabsf(v[p][c]));
        }
        if constexpr (WINOGRAD) {
            const float zero = v[0][c], one = v[1][c], two = v[2][c];
            v[0][c] = zero - two, v[1][c] = one + two, v[2][c] = two - one, v[3][c] -= one;
        }
    }
    if (WATCHED && (most == 0 || largest >= float(1 << (FP16_EXPONENT - WINOGRAD)))) {
        const u32 own = largest_of_vec(x, in_scales, image, y, col, first);
        if (own > most) atomicMax(beyond + image, own);
    }
    const size_t position = size_t(image) * SLOT + row * PITCH + column, apart = PLANES ? plane : 1;
    const int vec = (phase_y * PHASES_X + phase_x) * GROUPS + group;
    uint4* to = packed + (PLANES ? position : position * (PARTS * GROUPS)) + vec * apart;
#pragma unroll
    for (int p = 0; p < POINTS; ++p, to += GROUPS * apart) {
        u32 high[VEC / 2], low[VEC / 2];
#pragma unroll
        for (int c = 0; c < VEC / 2; ++c) {
            high[c] = ptx::half2(v[p][2 * c], v[p][2 * c + 1]);
            low[c] = ptx::rest2(v[p][2 * c], v[p][2 * c + 1], high[c]);
        }
        *to = {high[0], high[1], high[2], high[3]};
        if (PARTS == 2) to[PHASES * GROUPS * apart] = {low[0], low[1], low[2], low[3]};
    }
}
#endif

#ifdef ENTRY_tensor_split
// Images from the last to the first: what tensor_largest read last may still be in the cache.
extern "C" __global__ void __launch_bounds__(THREADS)
    tensor_split(const Held* __restrict__ x, const int* __restrict__ in_scales,
                 const u32* __restrict__ found, int* __restrict__ exponents, uint4* __restrict__ packed,
                 u32* __restrict__ beyond, int plane) {
    follow();
    const int image = (gridDim.x - 1 - blockIdx.x) / BLOCKS, part = blockIdx.x % BLOCKS;
    u32 most = __reduce_max_sync(~0u, largest_of(found + image * SHARES, threadIdx.x % 32));
    if (most) most += HEAD;
    split<(SAMPLE > 1)>(x, in_scales, most, exponents, packed, plane, beyond, image, part);
}
#endif

#ifdef ENTRY_tensor_resplit
// Blocks check THREADS images at a time, and divide those with inputs beyond their scale.
extern "C" __global__ void __launch_bounds__(THREADS)
    tensor_resplit(const Held* __restrict__ x, const int* __restrict__ in_scales, int* __restrict__ exponents,
                   uint4* __restrict__ packed, u32* __restrict__ beyond, int plane, int images) {
    __shared__ u32 larger[WARPS];
    follow();
    for (int group = 0; group < images; group += THREADS) {
        const int own = group + threadIdx.x;
        const u32 of_warp = __ballot_sync(~0u, own < images && beyond[own]);
        __syncthreads();
        if (threadIdx.x % 32 == 0) larger[threadIdx.x / 32] = of_warp;
        __syncthreads();
        for (int i = 0; i < WARPS; ++i)
            for (u32 left = larger[i]; left; left &= left - 1) {
                const int image = group + i * 32 + __ffs(left) - 1;
                for (int part = blockIdx.x; part < BLOCKS; part += gridDim.x)
                    split<false>(x, in_scales, beyond[image], exponents, packed, plane, beyond, image, part);
            }
    }
}
#endif
