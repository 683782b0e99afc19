// Inline PTX under names: shared-memory barriers, bulk copies, wgmma, stmatrix, half conversions.
// Shared memory is addressed by its 32-bit address; an accumulator is a float array that only
// constant indices touch. wgmma reads K-major operands without swizzle: core matrices are eight
// rows of 16 bytes; `k_stride` parts them along K, `row_stride` along M or N, both in bytes.
#pragma once

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

#define DEVICE __device__ __forceinline__

DEVICE u32 shared_address(const void *p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

DEVICE void barrier_init(u32 bar, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

DEVICE void barrier_arrive(u32 bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

DEVICE void barrier_expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

DEVICE bool barrier_passed(u32 bar, u32 parity) {
    u32 passed;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(passed)
        : "r"(bar), "r"(parity)
        : "memory");
    return passed != 0;
}

DEVICE void barrier_wait(u32 bar, u32 parity) {
    while (!barrier_passed(bar, parity)) {}
}

DEVICE void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Bytes and addresses are multiples of 16; the barrier counts the bytes as they land.
DEVICE void bulk_load(u32 to, const void *from, u32 bytes, u32 bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}

DEVICE u32 atomic_increment(u32 address) {
    u32 old;
    asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;" : "=r"(old) : "r"(address) : "memory");
    return old;
}

// Ordinary shared-memory accesses before it are visible to wgmma and bulk copies after it.
DEVICE void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE void group_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

DEVICE void group_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int pending> DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Keeps the compiler from reading an accumulator before the wait in front of this.
template <int n> DEVICE void settle(float (&d)[n]) {
#pragma unroll
    for (int i = 0; i < n; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

DEVICE u64 operand(u32 address, u32 k_stride, u32 row_stride) {
    return u64(address >> 4) | u64(k_stride >> 4) << 16 | u64(row_stride >> 4) << 32;
}

#define OPERANDS_4(c, d, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define OPERANDS_8(c, d, i) OPERANDS_4(c, d, i), OPERANDS_4(c, d, i + 4)
#define OPERANDS_32(c, d, i) OPERANDS_8(c, d, i), OPERANDS_8(c, d, i + 8), OPERANDS_8(c, d, i + 16), OPERANDS_8(c, d, i + 24)
#define OPERANDS_40(c, d) OPERANDS_32(c, d, 0), OPERANDS_8(c, d, 32)
#define OPERANDS_64(c, d) OPERANDS_32(c, d, 0), OPERANDS_32(c, d, 32)
#define OPERANDS_72(c, d) OPERANDS_64(c, d), OPERANDS_8(c, d, 64)

#define WGMMA_64X144(scale, c) \
    asm volatile( \
        "{ .reg .pred p; setp.ne.u32 p, " scale ", 0; wgmma.mma_async.sync.aligned.m64n144k16.f32.f16.f16 {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, " \
        "%8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, " \
        "%24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, " \
        "%40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, " \
        "%56, %57, %58, %59, %60, %61, %62, %63, " \
        "%64, %65, %66, %67, %68, %69, %70, %71" \
        "}, {%72, %73, %74, %75}, %76, p, 1, 1, 0; }" \
        : OPERANDS_72(c, d) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// d = a x b, or d += a x b where `add`: m64n144, K = 16, a held in registers.
template <bool add> DEVICE void multiply_64x144(float (&d)[72], const u32 (&a)[4], u64 b) {
    if constexpr (add) WGMMA_64X144("1", "+f");
    else WGMMA_64X144("0", "=f");
}

#define WGMMA_64X80(scale, c) \
    asm volatile( \
        "{ .reg .pred p; setp.ne.u32 p, " scale ", 0; wgmma.mma_async.sync.aligned.m64n80k16.f32.f16.f16 {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, " \
        "%8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, " \
        "%24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39" \
        "}, %40, %41, p, 1, 1, 0, 0; }" \
        : OPERANDS_40(c, d) \
        : "l"(a), "l"(b))

// d = a x b, or d += a x b where `add`: m64n80, K = 16, both in shared memory.
template <bool add> DEVICE void multiply_64x80(float (&d)[40], u64 a, u64 b) {
    if constexpr (add) WGMMA_64X80("1", "+f");
    else WGMMA_64X80("0", "=f");
}

#define WGMMA_64X128(scale, c) \
    asm volatile( \
        "{ .reg .pred p; setp.ne.u32 p, " scale ", 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" \
        "%0, %1, %2, %3, %4, %5, %6, %7, " \
        "%8, %9, %10, %11, %12, %13, %14, %15, " \
        "%16, %17, %18, %19, %20, %21, %22, %23, " \
        "%24, %25, %26, %27, %28, %29, %30, %31, " \
        "%32, %33, %34, %35, %36, %37, %38, %39, " \
        "%40, %41, %42, %43, %44, %45, %46, %47, " \
        "%48, %49, %50, %51, %52, %53, %54, %55, " \
        "%56, %57, %58, %59, %60, %61, %62, %63" \
        "}, %64, %65, p, 1, 1, 0, 0; }" \
        : OPERANDS_64(c, d) \
        : "l"(a), "l"(b))

// d = a x b, or d += a x b where `add`: m64n128, K = 16, both in shared memory.
template <bool add> DEVICE void multiply_64x128(float (&d)[64], u64 a, u64 b) {
    if constexpr (add) WGMMA_64X128("1", "+f");
    else WGMMA_64X128("0", "=f");
}

// Two 8x8 matrices of halves, transposed: lane l < 16 names row l % 8 of matrix l / 8 in memory.
DEVICE void store_transposed(u32 address, u32 first, u32 second) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(first), "r"(second)
                 : "memory");
}

// A load of constant data that the compiler leaves where it stands.
DEVICE void load_here(u32 (&to)[4], const uint4 *from) {
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from));
}

DEVICE u32 halves(float low, float high) {
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

DEVICE float low_half(u32 packed) {
    float value;
    asm("{ .reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(value) : "r"(packed));
    return value;
}

DEVICE float high_half(u32 packed) {
    float value;
    asm("{ .reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(packed));
    return value;
}

DEVICE u32 subtract_halves(u32 a, u32 b) {
    u32 difference;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
    return difference;
}
