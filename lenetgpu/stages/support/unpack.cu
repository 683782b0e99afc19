// Packed images (docs/packed.md) to uint8 pixels, a warp an image: lane r finds where row r's span
// lies, then every lane writes four pixels at a time, blank ones as zeros.
// Offsets are counted from `base`. Any bytes and offsets are safe: none is read from beyond the
// record or `bytes`, and every image is written whole. From -D WARPS, ROWS, COLUMNS, MASK_BYTES, SPAN_BITS, FIRST_BITS.
static_assert(ROWS <= 32, "a lane a row");
static_assert(COLUMNS % 4 == 0, "four pixels of one row are written together");
static_assert(SPAN_BITS <= 10, "a span's first bit is 6 at most, and two bytes are read for it");

struct Record {
    const unsigned char* packed;
    long long at, end;

    __device__ __forceinline__ unsigned byte(int i) const {
        return at + i < end ? packed[at + i] : 0u;
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    unpack(const unsigned char* __restrict__ packed, long long bytes,
           const unsigned* __restrict__ offsets, long long base, unsigned* __restrict__ images,
           int count) {
    constexpr int kWords = ROWS * COLUMNS / 4, kWordsARow = COLUMNS / 4;
    const int lane = threadIdx.x % 32;
    const int image = blockIdx.x * WARPS + threadIdx.x / 32;
    const int known = min(image, count - 1);
    const long long at = offsets[known] - base, end = min(offsets[known + 1] - base, bytes);
    const Record record = {packed, at, at < 0 ? at : end};

    unsigned rows = 0;
    for (int i = 0; i < MASK_BYTES; ++i) rows |= record.byte(i) << 8 * i;
    const int bit = SPAN_BITS * __popc(rows & ((1u << lane) - 1));
    const int place = MASK_BYTES + bit / 8;
    const unsigned code = (record.byte(place) | record.byte(place + 1) << 8) >> bit % 8;
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
    for (int base = 0; base < kWords; base += 32) {
        const int word = base + lane;
        const int own = __shfl_sync(~0u, span, word / kWordsARow);
        const int column = 4 * (word % kWordsARow) - (own & 31);
        unsigned four = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if ((unsigned)(column + i) < (own >> 5 & 63))
                four |= record.byte((own >> 11) + column + i) << 8 * i;
        }
        if (word < kWords && image < count) images[(long long)image * kWords + word] = four;
    }
}
