// Images to pool2's features in one kernel: conv1 on wgmma in fp16, its pooled maps and conv2's
// filters as bytes at twice the rate, exact int32 sums. The scale of the maps is one for the whole
// network and lies in conv1's filters, the scales of conv2's filters one a channel.
// A block is GROUPS warpgroups, each with two images at a time (conv2.cuh); a cell of conv1's holds
// 16 channels. sm_90a, any n >= 1.
#include "gpu/ptx/math.cuh"
#include "gpu/ptx/shared.cuh"
#include "stages/fused/wgmma/conv2.cuh"

// fp16 0..255 to the nearest whole number in a half's low byte: 0x6400 | byte is 1024 + byte.
__device__ __forceinline__ u32 to_bytes(u32 pair) {
    constexpr u32 MOST = 0x5bf85bf8, BIAS = 0x64006400;
    return ptx::add2(ptx::min2(pair, MOST), BIAS);
}

struct Bytes {
    using Sum = int;
    static constexpr int STEPS = TAPS;
    float scale, scale_8;

    __device__ __forceinline__ static u32 cell(int lane) {
        return lane % 4 / 2 * PLANE_BYTES + lane % 2 * 8;
    }
    // [channel/16] planes.
    __device__ __forceinline__ static void store(u32 to, const float (&d)[32]) {
        u32 b[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) b[k] = to_bytes(pool_pair(d + 8 * k));
        constexpr u32 LOW_BYTES = 0x6420;
        ptx::store_shared(
            to, make_uint2(__byte_perm(b[0], b[1], LOW_BYTES), __byte_perm(b[2], b[3], LOW_BYTES)));
    }
    __device__ __forceinline__ static int pool(int a, int b, int c, int d) {
        return (max(a, 0) + max(b, 0)) + (max(c, 0) + max(d, 0));
    }
    __device__ __forceinline__ u32 mean(const int* top, const int* bottom) const {
        return ptx::half2(scale * pool(top[0], top[1], bottom[0], bottom[1]),
                          scale_8 * pool(top[2], top[3], bottom[2], bottom[3]));
    }
};

// filters2 are bytes; scales: what a channel's sums of four are multiplied by.
__device__ __forceinline__ void run(Images images, const unsigned char* filters1,
                                    const unsigned char* filters2, const float* scales, uint4* out,
                                    int n) {
    carry<Bytes>(images, filters1, filters2, out, n, [=](int channel) {
        return Bytes{__ldg(scales + channel), __ldg(scales + channel + 8)};
    });
}

#if PACKED
extern "C" __global__ void __launch_bounds__(GROUPS* WARPGROUP, 1)
    int8_features(const unsigned char* __restrict__ records, long long bytes,
                  const u32* __restrict__ offsets, long long base,
                  const unsigned char* __restrict__ filters1,
                  const unsigned char* __restrict__ filters2, const float* __restrict__ scales,
                  uint4* __restrict__ out, int n) {
    run({records, bytes, offsets, base}, filters1, filters2, scales, out, n);
}
#else
extern "C" __global__ void __launch_bounds__(GROUPS* WARPGROUP, 1)
    int8_features(const Pixel* __restrict__ images, const unsigned char* __restrict__ filters1,
                  const unsigned char* __restrict__ filters2, const float* __restrict__ scales,
                  uint4* __restrict__ out, int n) {
    run(images, filters1, filters2, scales, out, n);
}
#endif
