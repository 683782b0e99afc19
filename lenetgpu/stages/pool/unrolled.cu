// ReLU and 2x2 mean as a matrix product over unrolled windows (report, sections 2.2 and 3.2):
// y[1][outputs] = box[1][4] x rows[4][outputs], each weight of the box a quarter.
// unroll_windows: rows[d][i] is input d of output i's window, with ReLU; one element per thread.
// box_product: one output per thread. Outputs are in y's memory order, so that a warp's loads and
// stores of rows coalesce. From -D CH, H, W, READS, WRITES, THREADS.
#include "stages/layout.cuh"

constexpr int OH = H / 2;
constexpr int OW = W / 2;
constexpr int WINDOW = 4;
static_assert(H % 2 == 0 && W % 2 == 0, "2x2 windows need even maps");

#ifdef ENTRY_unroll_windows
extern "C" __global__ void __launch_bounds__(THREADS)
    unroll_windows(const float* __restrict__ x, float* __restrict__ rows, long long outputs) {
    const long long element = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (element >= WINDOW * outputs) return;
    const int d = element / outputs;
    const long long i = element % outputs;
    const Index at = locate<WRITES, OH, OW, CH>(i % (OH * OW * CH));
    const size_t n = i / (OH * OW * CH);
    const float value = x[offset<READS, H, W, CH>(n, 2 * at.y + d / 2, 2 * at.x + d % 2, at.c)];
    rows[element] = fmaxf(value, 0.0f);
}
#endif

#ifdef ENTRY_box_product
extern "C" __global__ void __launch_bounds__(THREADS)
    box_product(const float* __restrict__ rows, float* __restrict__ y, long long outputs) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= outputs) return;
    float sum = 0.0f;
#pragma unroll
    for (int d = 0; d < WINDOW; ++d) sum += 0.25f * rows[d * outputs + i];
    y[i] = sum;
}
#endif
