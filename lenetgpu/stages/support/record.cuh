// One packed image (docs/packed.md) in shared memory, read by a warp: a lane finds a row's span.
// Any bytes are safe: what is beyond the record counts as zeros, and only words that hold a byte of
// it are read. From -D ROWS, COLUMNS, MASK_BYTES, SPAN_BITS, FIRST_BITS, LONGEST.
#pragma once

static_assert(ROWS <= 32, "a lane a row");
static_assert(COLUMNS % 4 == 0, "four pixels of one row are written together");
static_assert(MASK_BYTES == 4 && SPAN_BITS <= 25, "a mask, and a span, lie in the four bytes read");

// Bytes of the record that lies `at` such an offset: no more than LONGEST, none beyond `bytes`.
__device__ __forceinline__ int record_length(long long at, long long next, long long bytes) {
    next = min(next, bytes);
    return at < 0 || next < at ? 0 : (int)min(next - at, (long long)LONGEST);
}

struct Record {
    const unsigned* words;
    int begin, end;  // its bytes in `words`

    // Four bytes, the lowest first.
    __device__ __forceinline__ unsigned four(int i) const {
        const int at = begin + i, word = at / 4, left = end - at;
        const unsigned low = left > 0 ? words[word] : 0u;
        const unsigned high = 4 * word + 4 < end ? words[word + 1] : 0u;
        const unsigned held = __funnelshift_r(low, high, 8 * (at % 4));
        return left < 4 ? held & (1u << 8 * max(left, 0)) - 1 : held;
    }
    // Row `lane`'s span: its first column (5 bits), its pixels (6), where the first of these lies.
    __device__ __forceinline__ int span(int lane) const {
        const unsigned rows = four(0);
        const int bit = SPAN_BITS * __popc(rows & ((1u << lane) - 1));
        const unsigned code = four(MASK_BYTES + bit / 8) >> bit % 8;
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
        return first | width << 5 | pixels << 11;
    }
    // Four pixels from a column on of the row whose `span` that is.
    __device__ __forceinline__ unsigned pixels(int span, int from) const {
        const int column = from - (span & 31), width = span >> 5 & 63;
        if (column <= -4 || column >= width) return 0;
        unsigned held = four((span >> 11) + column);
        if (column < 0) held &= ~0u << -8 * column;
        if (column + 4 > width) held &= ~0u >> 8 * (column + 4 - width);
        return held;
    }
};
