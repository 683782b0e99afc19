// Pixels as a warpgroup's, by way of its registers, a round ahead.
#pragma once
#include "stages/fused/wgmma/conv1.cuh"

using Images = const Pixel*;

// Images of one warpgroup of `groups`, IMAGES a round: from `first` on in strides, before `end`.
struct Share {
    int first, stride, end;

    __device__ __forceinline__ Share(int group, int groups, int n)
        : first(IMAGES * group), stride(IMAGES * groups), end(n) {}
};

#if UINT8_PIXELS
// 16 pixels a thread, so that warps begin where lines of 128 bytes do: what comes over a bus is
// asked for by the line.
class Intake {
    static constexpr int PIECES = PIXELS / 16;
    static_assert(PIXELS % 16 == 0 && IMAGES * PIECES + 7 <= WARPGROUP, "a thread a piece");

    const Pixel* images_;
    int n_, tid_;
    uint4 held_;

    __device__ __forceinline__ int piece(int first) const {
        return tid_ - int((size_t(images_) / 16 + size_t(first) * PIECES) % 8);
    }

public:
    static constexpr int BYTES = 0;  // of shared memory a warpgroup

    __device__ __forceinline__ static void begin(u32) {}
    __device__ __forceinline__ Intake(Images images, unsigned char*, const Share&, int n, int tid)
        : images_(images), n_(n), tid_(tid) {}
    // Asks for images from `first` on, those of a round; zeros past the last image.
    __device__ __forceinline__ void fetch(int first, u32) {
        const int at = piece(first);
        held_ = {};
        if (at >= 0 && at < IMAGES * PIECES && first + at / PIECES < n_)
            held_ = ptx::load_constant(
                reinterpret_cast<const uint4*>(images_ + size_t(first) * PIXELS) + at);
    }
    // They become fp16.
    __device__ __forceinline__ void stage(u32 to, int first, u32) const {
        const int at = piece(first);
        if (at < 0 || at >= IMAGES * PIECES) return;
        ptx::store_shared(to + at * 32, to_fp16(Pixels8{held_.x, held_.y}));
        ptx::store_shared(to + at * 32 + 16, to_fp16(Pixels8{held_.z, held_.w}));
    }
};
#else
class Intake {
    const Pixel* images_;
    int n_, tid_;
    Pixels pixels_;

public:
    static constexpr int BYTES = 0;

    __device__ __forceinline__ static void begin(u32) {}
    __device__ __forceinline__ Intake(Images images, unsigned char*, const Share&, int n, int tid)
        : images_(images), n_(n), tid_(tid) {}
    __device__ __forceinline__ void fetch(int first, u32) {
        ::fetch(pixels_, images_, first, n_, tid_);
    }
    __device__ __forceinline__ void stage(u32 to, int, u32) const {
        ::stage(to, pixels_, tid_);
    }
};
#endif
