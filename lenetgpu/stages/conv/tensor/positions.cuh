// A warp's sums of 16 filters and WIDE positions of padded rows on their way to outputs, or to this part
// of them. A lane has filters lane / 4 and 8 below, of every 8 positions 2 (lane % 4) and the next; at
// NCHW it gives one of the two to its neighbour of the next filter, so that 8 lanes store 8 positions
// side by side. Where a position's output lies is divided out once and then walked, 8 positions a step.
#pragma once
#include "stages/conv/tensor/packed.cuh"

constexpr int WARP = 32;
constexpr long long IMAGE_OUTPUTS = (long long)PIXELS * M;

static_assert(PITCH >= OW && SLOT % PITCH == 0 && SLOT / PITCH >= OH, "an image holds its outputs");

struct Position {
    static constexpr int ROWS = SLOT / PITCH, DOWN = CELL / PITCH, RIGHT = CELL % PITCH;
    static constexpr long long X = WRITES == NHWC ? M : 1, Y = X * OW;
    int image, y, x;
    float* to;  // the output of its first filter; of no output, anywhere

    __device__ __forceinline__ Position(float* outputs, int position, int filter)
        : image(position / SLOT), y(position % SLOT / PITCH), x(position % PITCH),
          to(outputs + (image * IMAGE_OUTPUTS + y * Y + x * X + (long long)filter * apart())) {}
    // From a filter's output to the next filter's.
    __device__ __forceinline__ static constexpr int apart() { return WRITES == NHWC ? 1 : PIXELS; }
    __device__ __forceinline__ bool inside(int images) const {
        return image < images && y < OH && x < OW;
    }
    __device__ __forceinline__ void step() {
        image += DOWN / ROWS, y += DOWN % ROWS, x += RIGHT;
        to += DOWN / ROWS * IMAGE_OUTPUTS + DOWN % ROWS * Y + RIGHT * X;
        if (x >= PITCH) x -= PITCH, ++y, to += Y - PITCH * X;
        if (y >= ROWS) y -= ROWS, ++image, to += IMAGE_OUTPUTS - ROWS * Y;
    }
};

// What undoes the scales of an image and N filters, each in two steps as times_power has them.
template <int N>
struct Factors {
    float first[N], second[N];

    __device__ __forceinline__ void set(int top, const int (&drops)[N]) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const int k = (top == NO_TOP ? 0 : top - HALF_TOP) + drops[i];
            const int held = max(-2 * NORMAL, min(2 * NORMAL, k)), half = held / 2;
            const bool whole = u32(k + NORMAL) <= 2 * NORMAL;
            first[i] = power(whole ? k : half), second[i] = power(whole ? 0 : held - half);
        }
    }
};

// The largest outputs of lanes that are done with an image (`over`) to their images' `reached`. Every
// lane of a warp comes here.
__device__ __forceinline__ void keep(u32* __restrict__ reached, float most, int image, bool over) {
    for (u32 left = __ballot_sync(~0u, over); left;) {
        const int one = __shfl_sync(~0u, image, __ffs(left) - 1);
        const bool own = over && image == one;
        const u32 largest = __reduce_max_sync(~0u, own ? __float_as_uint(most) : 0);
        if (threadIdx.x % WARP == 0 && largest) atomicMax(reached + one, largest);
        left &= ~__ballot_sync(~0u, own);
    }
}

struct Outputs {
    static constexpr bool SWAPS = WRITES == NCHW;
    static constexpr int EACH = SWAPS ? 1 : 2;     // of 8 positions, a lane's
    static constexpr int FILTERS = 4 / EACH;       // a lane's
    int position, filter, images;

    // A lane's filter `i`, from its first.
    __device__ __forceinline__ static constexpr int on(int i) { return SWAPS ? i % 2 + i / 2 * 8 : i * 8; }
    __device__ __forceinline__ static void swap(float (&sums)[WIDE / 2]) {
        const bool odd = threadIdx.x / 4 % 2;
#pragma unroll
        for (int i = 0; i < WIDE / 2; i += 2) {
            const float got = __shfl_xor_sync(~0u, odd ? sums[i] : sums[i + 1], 4);
            (odd ? sums[i] : sums[i + 1]) = got;
        }
    }
    __device__ __forceinline__ void put(float (&sums)[WIDE / 2], const int* __restrict__ tops,
                                        const int* __restrict__ drops, float* __restrict__ y,
                                        u32* __restrict__ reached) const {
        if (position >= images * SLOT) return;
        if (SWAPS) swap(sums);
        const int lane = threadIdx.x % WARP, row = lane / 4;
        const int own = filter + (SWAPS ? row / 2 * 2 : row);
        int drop[FILTERS];
#pragma unroll
        for (int i = 0; i < FILTERS; ++i) drop[i] = drops[own + on(i)];
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            Position at(y, position + lane % 4 * 2 + (SWAPS ? row % 2 : e), own);
            Factors<FILTERS> factors;
            float most = 0.0f;
            if (SPLIT == 1) factors.set(tops[min(at.image, images - 1)], drop);
#pragma unroll
            for (int n = 0; n < WIDE / CELL; ++n) {
                if (n > 0) {
                    const int image = at.image;
                    at.step();
                    const bool next = at.image != image;
                    if (SPLIT == 1 && __ballot_sync(~0u, next)) {
                        keep(reached, most, image, next);
                        if (next) most = 0.0f, factors.set(tops[min(at.image, images - 1)], drop);
                    }
                }
                if (!at.inside(images)) continue;
#pragma unroll
                for (int i = 0; i < FILTERS; ++i) {
                    if (M % 64 != 0 && own + on(i) >= M) continue;
                    float v = sums[4 * n + (SWAPS ? i : 2 * i + e)];
                    if (SPLIT == 1) v = v * factors.first[i] * factors.second[i];
                    at.to[(long long)on(i) * Position::apart()] = v;
                    most = fmaxf(most, fabsf(v));  // which NaN does not change
                }
            }
            if (SPLIT == 1) keep(reached, most, at.image, true);
        }
    }
};
