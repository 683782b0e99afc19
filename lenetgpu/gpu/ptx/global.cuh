// Loads from global memory that say what the compiler may do with them.
#pragma once

namespace ptx {

// A load that stays where it stands: one of constant data (.nc) may leave its loop for good, in
// registers.
__device__ __forceinline__ uint4 load_here(const uint4* from) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return v;
}
// Loads of what no one writes from the wait before them (`wait_for_grid`) on.
__device__ __forceinline__ uint2 load_constant(const uint2* from) {
    uint2 v;
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(__cvta_generic_to_global(from)));
    return v;
}
__device__ __forceinline__ uint4 load_constant(const uint4* from) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(__cvta_generic_to_global(from)));
    return v;
}

}  // namespace ptx
