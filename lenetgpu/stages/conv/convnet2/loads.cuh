// What the kernels on cuda-convnet2's layout share: images[c][y][x][n], filters[r][s][c][m],
// outputs[m][y][x][n], images innermost. A block computes one output pixel of IMAGES images x
// FILTERS filters (paper, section 2.2) and walks the filter's pixels in chunks of CACHED_PIXELS
// (Fig. 6) and, where there are more than CACHED_CHANNELS channels, in chunks of those. Rows of a
// chunk are (pixel, channel). `put(row, column)` names the element of shared memory to fill.
// -D LOADS says how a chunk is loaded: the paper's section 4, step by step.
#pragma once
#include "stages/conv/convnet2/parts.cuh"
#include "stages/conv/shape.cuh"

constexpr int PLAIN = 0;      // Figs. 26 and 32: every index from the counters, every bound inside
constexpr int REDUCED = 1;    // Fig. 27: indices by addition
constexpr int HOISTED = 2;    // Fig. 30: and bounds before the loops
constexpr int LOOKED_UP = 3;  // Fig. 33: and image pixels from a table
static_assert(LOADS >= PLAIN && LOADS <= LOOKED_UP, "one of the four ways to load");

constexpr int THREADS = THREADS_X * THREADS_Y;
constexpr int IMAGES = THREADS_X * IMAGES_PER_THREAD;
constexpr int FILTERS = THREADS_Y * FILTERS_PER_THREAD;
constexpr int FILTER_BLOCKS = (M + FILTERS - 1) / FILTERS;
constexpr int FILTER_PIXELS = R * S;
constexpr int CACHED = CACHED_PIXELS * CACHED_CHANNELS;
constexpr int COLUMNS = FILTERS < THREADS ? FILTERS : THREADS;
constexpr int SLOTS = THREADS / COLUMNS;
constexpr bool WHOLE_CHANNELS = CH % CACHED_CHANNELS == 0;
constexpr bool WHOLE_FILTERS = M % FILTERS == 0;
static_assert(THREADS % COLUMNS == 0 && FILTERS % COLUMNS == 0,
              "a thread loads one column of filters, or a whole number of them");

struct Tile {
    int image, filter, pixel;  // the first image and filter of the block, its output pixel
    int x, y;                  // where that pixel's window begins, in the image
};

__device__ __forceinline__ Tile tile_of(int block) {
    const int pixel = block / FILTER_BLOCKS % PIXELS;
    return {block / FILTER_BLOCKS / PIXELS * IMAGES, block % FILTER_BLOCKS * FILTERS, pixel,
            pixel % OW * STRIDE - PAD, pixel / OW * STRIDE - PAD};
}

__device__ __forceinline__ bool inside(int y, int x) {
    return y >= 0 && y < H && x >= 0 && x < W;
}

template <class Put>
__device__ __forceinline__ void load_images_plain(Put put, const float* __restrict__ images,
                                                  Tile at, int pixel, int channel,
                                                  int image_count) {
    for (int p = threadIdx.y; p < CACHED_PIXELS; p += THREADS_Y) {
        const int pixel_index = pixel + p;
        const int x = at.x + pixel_index % S, y = at.y + pixel_index / S;
        if (pixel_index < FILTER_PIXELS && inside(y, x)) {
            for (int c = 0; c < CACHED_CHANNELS; ++c)
                for (int i = 0; i < IMAGES_PER_THREAD; ++i) {
                    const int image = at.image + i * THREADS_X + threadIdx.x;
                    const bool there =
                        image < image_count && (WHOLE_CHANNELS || channel + c < CH);
                    put(p * CACHED_CHANNELS + c, i * THREADS_X + threadIdx.x) =
                        there ? images[((channel + c) * H * W + y * W + x) * image_count + image]
                              : 0.0f;
                }
        } else {
            for (int c = 0; c < CACHED_CHANNELS; ++c)
                for (int i = 0; i < IMAGES_PER_THREAD; ++i)
                    put(p * CACHED_CHANNELS + c, i * THREADS_X + threadIdx.x) = 0.0f;
        }
    }
}

template <class Put>
__device__ __forceinline__ void load_filters_plain(Put put, const float* __restrict__ filters,
                                                   Tile at, int pixel, int channel) {
    const int thread = threadIdx.y * THREADS_X + threadIdx.x;
    for (int p = thread / COLUMNS; p < CACHED_PIXELS; p += SLOTS)
        for (int c = 0; c < CACHED_CHANNELS; ++c)
            for (int f = thread % COLUMNS; f < FILTERS; f += COLUMNS) {
                const int filter = at.filter + f;
                const bool there = pixel + p < FILTER_PIXELS && (WHOLE_FILTERS || filter < M) &&
                                   (WHOLE_CHANNELS || channel + c < CH);
                put(p * CACHED_CHANNELS + c, f) =
                    there ? filters[((pixel + p) * CH + channel + c) * M + filter] : 0.0f;
            }
}

template <bool CHECKED, class Put>
__device__ __forceinline__ void load_pixel(Put put, const float* __restrict__ images, int idx,
                                           int p, int image, int channels, int image_count) {
    for (int c = 0; c < CACHED_CHANNELS; ++c) {
        const int idx_save = idx;
        for (int i = 0; i < IMAGES_PER_THREAD; ++i) {
            const bool there = !CHECKED || (image + i * THREADS_X < image_count &&
                                            (WHOLE_CHANNELS || c < channels));
            put(p * CACHED_CHANNELS + c, i * THREADS_X + threadIdx.x) = there ? images[idx] : 0.0f;
            idx += THREADS_X;
        }
        idx = idx_save + H * W * image_count;
    }
}

// The image pixel under filter pixel `pixel_index`, counted in channel 0, or a negative number.
__device__ __forceinline__ int converted(Tile at, int pixel_index, const int* __restrict__ table) {
    if (pixel_index >= FILTER_PIXELS) return -1;
    if (LOADS == LOOKED_UP) {
        const int* rows = table + at.pixel / OW * FILTER_PIXELS;
        const int* columns = table + (OH + at.pixel % OW) * FILTER_PIXELS;
        return rows[pixel_index] + columns[pixel_index];
    }
    const int x = at.x + pixel_index % S, y = at.y + pixel_index / S;
    return inside(y, x) ? y * W + x : -1;
}

template <class Put>
__device__ __forceinline__ void load_images_reduced(Put put, const float* __restrict__ images,
                                                    Tile at, int pixel, int channel,
                                                    int image_count,
                                                    const int* __restrict__ table) {
    const int image = at.image + threadIdx.x, channels = CH - channel;
    const bool whole = LOADS >= HOISTED &&
                       image + (IMAGES_PER_THREAD - 1) * THREADS_X < image_count &&
                       (WHOLE_CHANNELS || CACHED_CHANNELS <= channels);
    for (int p = threadIdx.y; p < CACHED_PIXELS; p += THREADS_Y) {
        const int image_pixel_index = converted(at, pixel + p, table);
        const int idx = (channel * H * W + image_pixel_index) * image_count + image;
        if (image_pixel_index < 0) {
            for (int c = 0; c < CACHED_CHANNELS; ++c)
                for (int i = 0; i < IMAGES_PER_THREAD; ++i)
                    put(p * CACHED_CHANNELS + c, i * THREADS_X + threadIdx.x) = 0.0f;
        } else if (whole) {
            load_pixel<false>(put, images, idx, p, image, channels, image_count);
        } else {
            load_pixel<true>(put, images, idx, p, image, channels, image_count);
        }
    }
}

template <bool CHECKED, class Put>
__device__ __forceinline__ void load_filter_rows(Put put, const float* __restrict__ filters,
                                                 Tile at, int pixel, int channel) {
    const int thread = threadIdx.y * THREADS_X + threadIdx.x;
    const int f0 = thread % COLUMNS;
    int idx = ((pixel + thread / COLUMNS) * CH + channel) * M + at.filter + f0;
    for (int p = thread / COLUMNS; p < CACHED_PIXELS; p += SLOTS) {
        const int idx_save = idx;
        for (int c = 0; c < CACHED_CHANNELS; ++c) {
            for (int f = 0; f < FILTERS; f += COLUMNS) {
                const bool there =
                    !CHECKED ||
                    (pixel + p < FILTER_PIXELS && (WHOLE_CHANNELS || channel + c < CH) &&
                     (WHOLE_FILTERS || at.filter + f0 + f < M));
                put(p * CACHED_CHANNELS + c, f0 + f) = there ? filters[idx + f] : 0.0f;
            }
            idx += M;
        }
        idx = idx_save + SLOTS * CH * M;
    }
}

template <class Put>
__device__ __forceinline__ void load_filters_reduced(Put put, const float* __restrict__ filters,
                                                     Tile at, int pixel, int channel) {
    if (LOADS >= HOISTED && pixel + CACHED_PIXELS <= FILTER_PIXELS &&
        (WHOLE_CHANNELS || channel + CACHED_CHANNELS <= CH) &&
        (WHOLE_FILTERS || at.filter + FILTERS <= M))
        load_filter_rows<false>(put, filters, at, pixel, channel);
    else
        load_filter_rows<true>(put, filters, at, pixel, channel);
}

template <class PutImage, class PutFilter>
__device__ __forceinline__ void load_chunk(PutImage put_image, PutFilter put_filter,
                                           const float* __restrict__ images,
                                           const float* __restrict__ filters, Tile at, int pixel,
                                           int channel, int image_count,
                                           const int* __restrict__ table, Watch& watch) {
    if (LOADS == PLAIN) {
        load_images_plain(put_image, images, at, pixel, channel, image_count);
        watch.end_of(IMAGE_LOAD);
        load_filters_plain(put_filter, filters, at, pixel, channel);
    } else {
        load_images_reduced(put_image, images, at, pixel, channel, image_count, table);
        watch.end_of(IMAGE_LOAD);
        load_filters_reduced(put_filter, filters, at, pixel, channel);
    }
    watch.end_of(FILTER_LOAD);
}

__device__ __forceinline__ void store(float* __restrict__ outputs, Tile at, int f, int i,
                                      int image_count, float sum) {
    const int filter = at.filter + f, image = at.image + i;
    if (image < image_count && (WHOLE_FILTERS || filter < M))
        outputs[(filter * PIXELS + at.pixel) * image_count + image] = sum;
}
