// Images to pool2's features in one kernel: conv1 on wgmma in fp16, its pooled maps and conv2's
// filters as bytes at twice the rate, exact int32 sums. The scale of the maps is one for the whole
// network and lies in conv1's filters, the scales of conv2's filters one a channel.
// A block is GROUPS warpgroups, each with two images at a time (conv2.cuh); a vector of conv1's holds
// 16 channels. sm_90a, any n >= 1.
#include "stages/fused/wgmma/conv2.cuh"

extern "C" __global__ void __launch_bounds__(GROUPS* WARPGROUP, 1)
    int8_features(const Pixel* __restrict__ images, const unsigned char* __restrict__ filters1,
                  const unsigned char* __restrict__ filters2, const float* __restrict__ scales,
                  uint4* __restrict__ out, int n) {
    carry_bytes<Dense<int, FILTER_ELEMENTS>>(images, filters1, filters2, scales, out, n);
}
