// PTX that CUDA C++ has no name for, one wrapper an instruction; sm_90a.
// Shared addresses are 32-bit; mbarriers 8 bytes; `wgmma` picks its N by the accumulator array:
// D[64][2 * size] (+)= A[64][16] B[16][2 * size], fp16 in, fp32 out, A from registers or shared.
#pragma once

namespace ptx {

using u32 = unsigned;
using u64 = unsigned long long;

__device__ __forceinline__ u32 shared(const void* p) { return u32(__cvta_generic_to_shared(p)); }

// Descriptor of an operand without swizzle: cores of 8 rows x 16 bytes, `k_step` bytes between
// neighbours along K and `row_step` bytes between neighbours along M or N.
__device__ __forceinline__ u64 operand(u32 start, u32 k_step, u32 row_step) {
    return u64(start >> 4) | u64(k_step >> 4) << 16 | u64(row_step >> 4) << 32;
}

__device__ __forceinline__ void barrier_init(u32 bar, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void barrier_expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ bool barrier_passed(u32 bar, u32 parity) {
    u32 done;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
        " selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(bar), "r"(parity)
        : "memory");
    return done;
}
__device__ __forceinline__ void barrier_wait(u32 bar, u32 parity) {
#ifdef SPIN_LIMIT
    for (int spin = 0; !barrier_passed(bar, parity); ++spin)
        if (spin > SPIN_LIMIT) asm volatile("trap;");
#else
    while (!barrier_passed(bar, parity)) {
    }
#endif
}
// Waits for `threads` threads of the block at named barrier `id` (1 to 15).
__device__ __forceinline__ void sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void bulk_load(u32 to, const void* from, u32 bytes, u32 bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(bar)
        : "memory");
}
__device__ __forceinline__ void copy16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from))
                 : "memory");
}
__device__ __forceinline__ void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int PENDING>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
// Makes this thread's shared-memory writes visible to wgmma and to bulk copies.
__device__ __forceinline__ void async_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void store_shared(u32 to, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}
__device__ __forceinline__ void store_shared(u32 to, u32 v) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ __forceinline__ u32 load_shared(u32 from) {
    u32 v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

// Two floats to fp16, `low` in the low half.
__device__ __forceinline__ u32 half2(float low, float high) {
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
__device__ __forceinline__ u32 subtract2(u32 a, u32 b) {
    u32 d;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

// 8x8 fp16 matrices, transposed; lanes 8i to 8i+7 name the rows of matrix i.
__device__ __forceinline__ void store_transposed(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
__device__ __forceinline__ void store_transposed(u32 to, u32 a) {
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(to), "r"(a)
                 : "memory");
}
__device__ __forceinline__ uint4 load_matrices(u32 from) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], uint4 a, uint2 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7},"
        " {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Keeps the compiler from computing what hangs on `v` ahead of a loop, in registers.
__device__ __forceinline__ void here(u64& v) { asm volatile("" : "+l"(v)); }
// Keeps the compiler from reading accumulators before the wait above it.
template <int SIZE>
__device__ __forceinline__ void settle(float (&d)[SIZE]) {
#pragma unroll
    for (int i = 0; i < SIZE; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define R4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
template <bool ADD>
__device__ __forceinline__ void wgmma(float (&d)[40], u64 a, u64 b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %42, 0;"
        " wgmma.mma_async.sync.aligned.m64n80k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39"
        "}, %40, %41, p, 1, 1, 0, 0; }"
        : R4(0), R4(4), R4(8), R4(12), R4(16), R4(20), R4(24), R4(28),
          R4(32), R4(36)
        : "l"(a), "l"(b), "n"(int(ADD)));
}

template <bool ADD>
__device__ __forceinline__ void wgmma(float (&d)[64], u64 a, u64 b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %66, 0;"
        " wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0; }"
        : R4(0), R4(4), R4(8), R4(12), R4(16), R4(20), R4(24), R4(28),
          R4(32), R4(36), R4(40), R4(44), R4(48), R4(52), R4(56), R4(60)
        : "l"(a), "l"(b), "n"(int(ADD)));
}

template <bool ADD>
__device__ __forceinline__ void wgmma(float (&d)[128], u64 a, u64 b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %130, 0;"
        " wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, p, 1, 1, 0, 0; }"
        : R4(0), R4(4), R4(8), R4(12), R4(16), R4(20), R4(24), R4(28),
          R4(32), R4(36), R4(40), R4(44), R4(48), R4(52), R4(56), R4(60),
          R4(64), R4(68), R4(72), R4(76), R4(80), R4(84), R4(88), R4(92),
          R4(96), R4(100), R4(104), R4(108), R4(112), R4(116), R4(120), R4(124)
        : "l"(a), "l"(b), "n"(int(ADD)));
}

template <bool ADD>
__device__ __forceinline__ void wgmma(float (&d)[32], const uint4& a, u64 b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %37, 0;"
        " wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0; }"
        : R4(0), R4(4), R4(8), R4(12), R4(16), R4(20), R4(24), R4(28)
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "n"(int(ADD)));
}
#undef R4

}  // namespace ptx
