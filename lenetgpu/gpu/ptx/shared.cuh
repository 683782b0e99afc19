// Shared memory by its 32-bit address: stores, loads, a count.
#pragma once
#include "gpu/ptx/math.cuh"

namespace ptx {

__device__ __forceinline__ u32 shared(const void* p) {
    return u32(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void store_shared(u32 to, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}
__device__ __forceinline__ void store_shared(u32 to, uint2 v) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_shared(u32 to, u32 v) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ __forceinline__ u32 load_shared(u32 from) {
    u32 v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}
__device__ __forceinline__ uint4 load_shared4(u32 from) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}
// Adds one and says what was there.
__device__ __forceinline__ u32 increment_shared(u32 at) {
    u32 old;
    asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;"
                 : "=r"(old)
                 : "r"(at)
                 : "memory");
    return old;
}

}  // namespace ptx
