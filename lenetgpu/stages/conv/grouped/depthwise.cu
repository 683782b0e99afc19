// Depthwise convolution (a channel a group) of any strides, padding of each side and dilation.
// A thread computes TALL outputs of a column, one below the other, from input rows that it loads
// once; neighbours take neighbouring columns (NCHW) or channels (NHWC), so that loads and stores
// coalesce. The filter's elements stay in registers. Sums are float32, rounded once to DTYPE.
// Filter elements over padding are multiplied by zero: an infinite one makes NaN there.
#include "stages/element.cuh"
#include "stages/layout.cuh"

constexpr int STRIPS = (OH + TALL - 1) / TALL;  // of TALL rows
constexpr int ITEMS = STRIPS * OW * M;          // threads an image
constexpr int REACH = (TALL - 1) * STRIDE_Y + (R - 1) * DILATION_Y + 1;  // input rows a strip
static_assert(M % CH == 0, "every channel must have the same number of maps");
static_assert(OH > 0 && OW > 0, "the filter must fit into the padded image");

using Value = Element<DTYPE>;
using Held = Value::Held;

#ifdef ENTRY_conv_depthwise
extern "C" __global__ void __launch_bounds__(THREADS)
    conv_depthwise(const Held* __restrict__ x, const Held* __restrict__ w,
                   const Held* __restrict__ bias, Held* __restrict__ y, long long count) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const size_t n = i / ITEMS;
    const Index at = locate<WRITES, STRIPS, OW, M>(int(i % ITEMS));
    const int channel = at.c / (M / CH), left = at.x * STRIDE_X - LEFT;
    const int top = at.y * TALL * STRIDE_Y - ABOVE;
    float taps[R * S], sums[TALL];
#pragma unroll
    for (int k = 0; k < R * S; ++k) taps[k] = Value::load(w[k * M + at.c]);
#pragma unroll
    for (int t = 0; t < TALL; ++t) sums[t] = 0.0f;
#pragma unroll
    for (int j = 0; j < REACH; ++j) {
        const int iy = top + j;
#pragma unroll
        for (int s = 0; s < S; ++s) {
            const int ix = left + s * DILATION_X;
            const bool inside = iy >= 0 && iy < H && ix >= 0 && ix < W;
            const float value =
                inside ? Value::load(x[offset<READS, H, W, CH>(n, iy, ix, channel)]) : 0.0f;
#pragma unroll
            for (int t = 0; t < TALL; ++t) {
                const int far = j - t * STRIDE_Y;  // rows below the output's first
                if (far >= 0 && far % DILATION_Y == 0 && far / DILATION_Y < R)
                    sums[t] += value * taps[far / DILATION_Y * S + s];
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TALL; ++t) {
        const int row = at.y * TALL + t;
        if (row >= OH) return;
        float sum = sums[t];
        if (BIAS) sum += Value::load(bias[at.c]);
        if (RELU && sum < 0.0f) sum = 0.0f;  // NaN is not
        y[offset<WRITES, OH, OW, M>(n, row, at.x, at.c)] = Value::store(sum);
    }
}
#endif
