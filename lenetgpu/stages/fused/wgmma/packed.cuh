// Packed images (docs/packed.md) as a warpgroup's pixels: a round's records come to shared memory in
// bulk, from wherever they lie, page-locked memory of the host too, a round ahead; the warps make
// fp16 pixels of them. A warpgroup takes images that follow each other, so that their records do,
// and their offsets fill a warp's lanes.
// Any bytes and offsets are safe, as in record.cuh.
#pragma once
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/barrier.cuh"
#include "stages/fused/wgmma/conv1.cuh"
#include "stages/support/record.cuh"

static_assert(ROWS * COLUMNS == PIXELS && WARPGROUP == 64 * IMAGES, "two warps an image");

// Records: the first at offsets[0] - `base`, all of them within `bytes`.
struct Images {
    const unsigned char* records;
    long long bytes;
    const u32* offsets;
    long long base;
};

// Images of one warpgroup of `groups`, IMAGES a round: from `first` on, before `end`.
struct Share {
    static constexpr int stride = IMAGES;
    int first, end;

    __device__ __forceinline__ Share(int group, int groups, int n) {
        const int rounds = (n + IMAGES - 1) / IMAGES, each = rounds / groups, more = rounds % groups;
        first = IMAGES * (group * each + min(group, more));
        end = first + IMAGES * (each + (group < more));
    }
};

class Intake {
    static constexpr int SLOTS = 2, ROOM = (15 + LONGEST + 15) / 16 * 16;  // a record by itself
    static constexpr int PLACES = SLOTS * IMAGES * ROOM;
    static constexpr int FULL = PLACES + SLOTS * IMAGES * int(sizeof(int2));
    static constexpr int WINDOW = 30;  // images after which the lanes hold other offsets
    static_assert(WINDOW % IMAGES == 0 && WINDOW < 32, "the next image's offset ends a record");

    const Images& images_;
    unsigned char* memory_;
    int end_, n_, window_, tid_;
    u32 held_, ahead_;  // a lane's offset from image `window_` on, and from the next window on

    __device__ __forceinline__ u32 offset(int image) const {
        return __ldg(images_.offsets + min(image, n_));
    }
    // Where a round's records begin and end in their slot.
    __device__ __forceinline__ int2* places(u32 slot) const {
        return reinterpret_cast<int2*>(memory_ + PLACES) + slot * IMAGES;
    }
    __device__ __forceinline__ u32 barrier(u32 slot) const {
        return barriers(ptx::shared(memory_)) + 8 * slot;
    }
    // By a warp, a lane a record; in one copy where each follows the one before it.
    __device__ __forceinline__ void load(u32 slot, long long at, long long next) const {
        const auto sixteens = [](int bytes) { return (bytes + 15) / 16 * 16; };
        const bool own = tid_ < IMAGES;
        const int bytes = own ? record_length(at, next, images_.bytes) : 0;
        const bool together = __all_sync(~0u, !own || bytes == next - at);
        const int lead = int(size_t(images_.records + at) % 16);
        const int before = int(at - __shfl_sync(~0u, at, 0));
        const int from = together ? __shfl_sync(~0u, lead, 0) + before : tid_ * ROOM + lead;
        if (own) places(slot)[tid_] = bytes ? make_int2(from, from + bytes) : int2{};
        const int total = __reduce_add_sync(~0u, bytes);
        const int apart = __reduce_add_sync(~0u, bytes ? sixteens(lead + bytes) : 0);
        const int asked = together ? (tid_ == 0 && total ? sixteens(lead + total) : 0)
                                   : (bytes ? sixteens(lead + bytes) : 0);
        __syncwarp();  // the places are there
        if (tid_ == 0) ptx::barrier_expect(barrier(slot), together ? asked : apart);
        __syncwarp();
        const u32 to = ptx::shared(memory_) + (slot * IMAGES + (together ? 0 : tid_)) * ROOM;
        if (asked) ptx::bulk_load(to, images_.records + at - lead, asked, barrier(slot));
    }

public:
    static constexpr int BYTES = FULL + 8 * SLOTS;  // of shared memory a warpgroup
    static_assert(BYTES == RECORD_BYTES && BYTES % 16 == 0, "the launcher's layout differs");

    __device__ __forceinline__ static u32 barriers(u32 memory) { return memory + FULL; }
    // By one thread, before any other uses it.
    __device__ __forceinline__ static void begin(u32 memory) {
        for (int slot = 0; slot < SLOTS; ++slot) ptx::barrier_init(barriers(memory) + 8 * slot, 1);
    }

    __device__ __forceinline__ Intake(const Images& images, unsigned char* memory, const Share& share,
                                    int n, int tid)
        : images_(images), memory_(memory), end_(share.end), n_(n), window_(share.first),
          tid_(tid) {
        if (tid >= 32) return;
        held_ = offset(window_ + tid), ahead_ = offset(window_ + WINDOW + tid);
    }
    // Asks for images from `first` on, those of `round`.
    __device__ __forceinline__ void fetch(int first, u32 round) {
        if (first >= end_ || tid_ >= 32) return;
        if (first - window_ == WINDOW) {
            window_ = first, held_ = ahead_;
            ahead_ = offset(window_ + WINDOW + tid_);
        }
        const int lane = first - window_ + tid_ % IMAGES;
        const long long at = (long long)__shfl_sync(~0u, held_, lane) - images_.base;
        const long long next = (long long)__shfl_sync(~0u, held_, lane + 1) - images_.base;
        load(round % SLOTS, at, next);
    }
    // They become pixels: a lane takes four or three times four of a row.
    __device__ __forceinline__ void stage(u32 to, int first, u32 round) const {
        constexpr int FOURS = COLUMNS / 4, HALF = ROWS / 2;
        static_assert(ROWS % 2 == 0 && ROWS <= 32 && FOURS <= 8, "two lanes a row of half an image");
        if (first >= end_) return;
        const u32 slot = round % SLOTS;
        const int lane = tid_ % 32, image = tid_ / 64, half = tid_ / 32 % 2;
        ptx::barrier_wait(barrier(slot), round / SLOTS & 1);
        const int2 found = places(slot)[image];
        const unsigned char* held = memory_ + slot * IMAGES * ROOM;
        const Record record = {reinterpret_cast<const unsigned*>(held), found.x, found.y};
        const int row = half * HALF + min(lane / 2, HALF - 1);
        const int span = __shfl_sync(~0u, record.span(lane), row);
        if (lane >= 2 * HALF) return;
        to += image * IMAGE_BYTES + row * ROW_BYTES;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int four = lane % 2 * 4 + k;
            if (four < FOURS) ptx::store_shared(to + four * 8, halves(record.pixels(span, 4 * four)));
        }
    }
};
