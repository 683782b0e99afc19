// fp16 as its 16 bits, without CUDA's headers.
#pragma once

__device__ __forceinline__ unsigned short half_bits(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
