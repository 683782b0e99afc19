// Convolution of single-channel maps, as published (Pascal paper, section 3.1, equation (2)).
// SMS x EACH blocks: a multiprocessor has PART_LINES lines of the padded map in PART_FILTERS
// filters, and goes through PIECES of one of both; its blocks have each a share of every piece.
// While a piece is used the next comes into registers; a single piece is loaded in bulk. A thread
// has one pixel at a time, its K x K neighbours in registers, and runs over the filters.
// x (n, 1, H, W); w (M, 1, R, S) as it lies; y (n, M, OH, OW).
#include "stages/conv/shape.cuh"

constexpr int WP = W + 2 * PAD;
constexpr int PIECE_LINES = STREAMS_LINES ? (PART_LINES + PIECES - 1) / PIECES : PART_LINES;
constexpr int PIECE_FILTERS = STREAMS_LINES ? PART_FILTERS : (PART_FILTERS + PIECES - 1) / PIECES;
constexpr int LINES = STREAMS_LINES ? (PIECE_LINES + EACH - 1) / EACH : PIECE_LINES;
constexpr int FILTERS = STREAMS_LINES ? PIECE_FILTERS : (PIECE_FILTERS + EACH - 1) / EACH;
constexpr int RS = R * S;
constexpr int MAP = (LINES + R - 1) * WP;
constexpr int SET = FILTERS * RS;
constexpr bool PREFETCHES = PIECES > 1;
constexpr int OF_MAP = PREFETCHES ? (MAP + THREADS - 1) / THREADS : 1;
constexpr int OF_SET = PREFETCHES && !STREAMS_LINES ? (SET + THREADS - 1) / THREADS : 1;

static_assert(CH == 1 && STRIDE == 1, "equation (2)");
static_assert(READS == NCHW && WRITES == NCHW, "planes are read and written");
static_assert(4 * (MAP + SET) == SHARED_BYTES, "launcher differs");

// Outputs of a block in one piece of one image: lines from y0 to y1 in maps from m0 to m1.
struct Piece {
    size_t n;
    int piece, y0, y1, m0, m1;
};

__device__ __forceinline__ Piece piece_at(size_t n, int piece) {
    const int sm = blockIdx.x % SMS, share = blockIdx.x / SMS;
    const int line = sm % ROW_PARTS * PART_LINES, filter = sm / ROW_PARTS * PART_FILTERS;
    Piece p{n, piece, line, min(line + PART_LINES, OH), filter, min(filter + PART_FILTERS, M)};
    if (STREAMS_LINES) {
        const int from = line + piece * PIECE_LINES;
        p.y0 = from + share * LINES;
        p.y1 = min(p.y1, min(from + PIECE_LINES, p.y0 + LINES));
    } else {
        const int from = filter + piece * PIECE_FILTERS;
        p.m0 = from + share * FILTERS;
        p.m1 = min(p.m1, min(from + PIECE_FILTERS, p.m0 + FILTERS));
    }
    return p;
}

// What a piece has that the one before it in the block did not.
__device__ __forceinline__ bool new_lines(const Piece& p) {
    return STREAMS_LINES || p.piece == 0;
}
__device__ __forceinline__ bool new_filters(const Piece& p) { return PREFETCHES && !STREAMS_LINES; }

__device__ __forceinline__ float pixel_at(const float* __restrict__ x, const Piece& p, int i) {
    const int row = p.y0 + i / WP - PAD, col = i % WP - PAD;
    const bool there = row >= 0 && row < H && col >= 0 && col < W;
    return there ? x[p.n * (H * W) + row * W + col] : 0.0f;
}

__device__ __forceinline__ float filter_at(const float* __restrict__ w, const Piece& p, int i) {
    const int at = p.m0 * RS + i;
    return at < M * RS ? w[at] : 0.0f;
}

__device__ __forceinline__ void convolve(const float* map, const float* filters,
                                         float* __restrict__ y, const Piece& p) {
    for (int i = threadIdx.x; i < (p.y1 - p.y0) * OW; i += THREADS) {
        const int row = i / OW, col = i % OW;
        float window[RS];
#pragma unroll
        for (int t = 0; t < RS; ++t) window[t] = map[(row + t / S) * WP + col + t % S];
        float* to = y + ((p.n * M + p.m0) * OH + p.y0 + row) * OW + col;
#pragma unroll 2
        for (int m = 0; m < p.m1 - p.m0; ++m) {
            float sum = 0.0f;
#pragma unroll
            for (int t = 0; t < RS; ++t) sum = fmaf(filters[m * RS + t], window[t], sum);
            to[size_t(m) * (OH * OW)] = sum;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv_single_strict(const float* __restrict__ x, const float* __restrict__ w,
                       float* __restrict__ y, int n) {
    extern __shared__ __align__(16) float map[];
    float* const filters = map + MAP;
    Piece now = piece_at(0, 0);
    if (blockIdx.x % SMS >= ROW_PARTS * FILTER_PARTS) return;

    for (int i = threadIdx.x; i < MAP; i += THREADS) map[i] = pixel_at(x, now, i);
    for (int i = threadIdx.x; i < SET; i += THREADS) filters[i] = filter_at(w, now, i);
    __syncthreads();
    while (true) {
        const bool last = now.piece + 1 == PIECES;
        const Piece next = piece_at(now.n + last, last ? 0 : now.piece + 1);
        const bool more = next.n < n;
        float pixels[OF_MAP], weights[OF_SET];
        if (PREFETCHES && more) {
            if (new_lines(next))
#pragma unroll
                for (int k = 0; k < OF_MAP; ++k)
                    pixels[k] = pixel_at(x, next, threadIdx.x + k * THREADS);
            if (new_filters(next))
#pragma unroll
                for (int k = 0; k < OF_SET; ++k)
                    weights[k] = filter_at(w, next, threadIdx.x + k * THREADS);
        }
        convolve(map, filters, y, now);
        if (!more) break;
        __syncthreads();
        if (!PREFETCHES) {
            for (int i = threadIdx.x; i < MAP; i += THREADS) map[i] = pixel_at(x, next, i);
        } else {
            if (new_lines(next))
#pragma unroll
                for (int k = 0; k < OF_MAP; ++k)
                    if (threadIdx.x + k * THREADS < MAP) map[threadIdx.x + k * THREADS] = pixels[k];
            if (new_filters(next))
#pragma unroll
                for (int k = 0; k < OF_SET; ++k)
                    if (threadIdx.x + k * THREADS < SET) filters[threadIdx.x + k * THREADS] = weights[k];
        }
        __syncthreads();
        now = next;
    }
}
