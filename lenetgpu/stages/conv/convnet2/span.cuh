// With -D CLOCK a kernel takes a last argument and each block notes there the multiprocessor it ran
// on and clock64 at its begin and end: three numbers a block. Without it nothing is added.
#pragma once

#if defined(CLOCK) || defined(PARTS)
#define SPANS , long long *__restrict__ spans
#else
#define SPANS
#endif

#ifdef CLOCK
#define SPAN_BEGIN const long long span_begin = clock64();
#define SPAN_END span_end(spans, span_begin);

__device__ __forceinline__ void span_end(long long* __restrict__ spans, long long begin) {
    __syncthreads();
    if (threadIdx.x != 0 || threadIdx.y != 0) return;
    unsigned multiprocessor;
    asm volatile("mov.u32 %0, %smid;" : "=r"(multiprocessor));
    spans[3 * blockIdx.x] = multiprocessor;
    spans[3 * blockIdx.x + 1] = begin;
    spans[3 * blockIdx.x + 2] = clock64();
}
#else
#define SPAN_BEGIN
#define SPAN_END
#endif
