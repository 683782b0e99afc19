// Packed images (docs/packed.md) to uint8 pixels, a warp an image: the record goes to shared memory
// by words, lane r finds where row r's span lies in it, then every lane writes four pixels at a
// time, blank ones as zeros. Offsets are counted from `base`.
// Any bytes and offsets are safe: nothing counts that is beyond the record, its LONGEST bytes or
// `bytes`, only words that hold one of those are read, and every image is written whole.
// From -D WARPS, ROWS, COLUMNS, MASK_BYTES, SPAN_BITS, FIRST_BITS, LONGEST.
static_assert(ROWS <= 32, "a lane a row");
static_assert(COLUMNS % 4 == 0, "four pixels of one row are written together");
static_assert(MASK_BYTES == 4 && SPAN_BITS <= 25, "a mask, and a span, lie in the four bytes read");

constexpr int WORDS = (3 + LONGEST + 3) / 4, EACH = (WORDS + 31) / 32;

struct Record {
    const unsigned* words;
    int begin, end;  // its bytes in `words`

    // Four bytes, the lowest first, zeros for those beyond the end.
    __device__ __forceinline__ unsigned four(int i) const {
        const int at = begin + i, word = at / 4;
        const unsigned low = 4 * word < end ? words[word] : 0u;
        const unsigned high = 4 * word + 4 < end ? words[word + 1] : 0u;
        return __funnelshift_r(low, high, 8 * (at % 4));
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    unpack(const unsigned char* __restrict__ packed, long long bytes,
           const unsigned* __restrict__ offsets, long long base, unsigned* __restrict__ images,
           int count) {
    constexpr int kWords = ROWS * COLUMNS / 4, kWordsARow = COLUMNS / 4;
    __shared__ unsigned held[WARPS][WORDS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int image = blockIdx.x * WARPS + warp, known = min(image, count - 1);

    const long long at = offsets[known] - base, next = min(offsets[known + 1] - base, bytes);
    const int length = at < 0 || next < at ? 0 : (int)min(next - at, (long long)LONGEST);
    const unsigned char* first_byte = packed + (length ? at : 0);
    const int begin = (size_t)first_byte % 4, end = length ? begin + length : 0;
    const unsigned* from = reinterpret_cast<const unsigned*>(first_byte - begin);
    unsigned own_words[EACH];
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const int word = lane + 32 * k;
        own_words[k] = 4 * word < end ? from[word] : 0u;
    }
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const int word = lane + 32 * k, beyond = 4 * word + 4 - end;
        if (beyond < 4) held[warp][word] = own_words[k] & ~0u >> 8 * max(beyond, 0);
    }
    __syncwarp();
    const Record record = {held[warp], begin, end};

    const unsigned rows = record.four(0);
    const int bit = SPAN_BITS * __popc(rows & ((1u << lane) - 1));
    const unsigned code = record.four(MASK_BYTES + bit / 8) >> bit % 8;
    const int first = code & ((1 << FIRST_BITS) - 1);
    const int width = rows >> lane & 1
                          ? 1 + (code >> FIRST_BITS & ((1 << (SPAN_BITS - FIRST_BITS)) - 1))
                          : 0;
    int sum = width;
    for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += before;
    }
    const int pixels = MASK_BYTES + (SPAN_BITS * __popc(rows) + 7) / 8 + sum - width;
    const int span = first | width << 5 | pixels << 11;

#pragma unroll
    for (int start = 0; start < kWords; start += 32) {
        const int word = start + lane;
        const int own = __shfl_sync(~0u, span, word / kWordsARow);
        const int column = 4 * (word % kWordsARow) - (own & 31), wide = own >> 5 & 63;
        unsigned four = 0;
        if (column > -4 && column < wide) {
            four = record.four((own >> 11) + column);
            if (column < 0) four &= ~0u << -8 * column;
            if (column + 4 > wide) four &= ~0u >> 8 * (column + 4 - wide);
        }
        if (word < kWords && image < count) images[(long long)image * kWords + word] = four;
    }
}
