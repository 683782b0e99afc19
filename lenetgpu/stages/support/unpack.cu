// Packed images (docs/packed.md) to uint8 pixels, a warp an image: the record goes to shared memory
// by words, lane r finds where row r's span lies in it, then every lane writes four pixels at a
// time, blank ones as zeros. Offsets are counted from `base`.
// Any bytes and offsets are safe: nothing counts that is beyond the record, its LONGEST bytes or
// `bytes`, only words that hold one of those are read, and every image is written whole.
// From -D WARPS and what record.cuh needs.
#include "stages/support/record.cuh"

constexpr int WORDS = (3 + LONGEST + 3) / 4, EACH = (WORDS + 31) / 32;

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    unpack(const unsigned char* __restrict__ packed, long long bytes,
           const unsigned* __restrict__ offsets, long long base, unsigned* __restrict__ images,
           int count) {
    constexpr int kWords = ROWS * COLUMNS / 4, kWordsARow = COLUMNS / 4;
    __shared__ unsigned held[WARPS][WORDS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int image = blockIdx.x * WARPS + warp, known = min(image, count - 1);

    const long long at = offsets[known] - base;
    const int length = record_length(at, offsets[known + 1] - base, bytes);
    const unsigned char* first_byte = packed + (length ? at : 0);
    const int begin = (size_t)first_byte % 4, end = length ? begin + length : 0;
    const unsigned* from = reinterpret_cast<const unsigned*>(first_byte - begin);
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const int word = lane + 32 * k;
        if (4 * word < end) held[warp][word] = from[word];
    }
    __syncwarp();
    const Record record = {held[warp], begin, end};
    const int span = record.span(lane);

#pragma unroll
    for (int start = 0; start < kWords; start += 32) {
        const int word = start + lane;
        const int own = __shfl_sync(~0u, span, word / kWordsARow);
        const unsigned four = record.pixels(own, 4 * (word % kWordsARow));
        if (word < kWords && image < count) images[(long long)image * kWords + word] = four;
    }
}
