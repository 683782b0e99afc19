// Direct convolution of any strides, padding of each side, dilation and groups: one output a thread.
// A block takes THREADS outputs in the order in which they lie in memory, so that stores coalesce;
//   so do loads of columns (NCHW) and of a depthwise convolution's channels (NHWC).
// Filter elements over padding are multiplied by zero: an infinite filter makes NaN there, as in the reference.
// Sums are float32; a bias is added and ReLU applied as they are stored, rounded once to DTYPE.
// Index arithmetic alone, nothing is shared or kept: it is the GPU's way for shapes that no other
//   kernel takes, and what a fast one can be compared with.
#include "stages/element.cuh"
#include "stages/layout.cuh"

constexpr int CHANNELS = CH / GROUPS, MAPS = M / GROUPS;  // of a group
constexpr int OUTPUTS = OH * OW * M;                      // of an image
static_assert(CH % GROUPS == 0 && M % GROUPS == 0, "groups must divide channels and maps");
static_assert(OH > 0 && OW > 0, "the filter must fit into the padded image");

using Value = Element<DTYPE>;
using Held = Value::Held;

#ifdef ENTRY_conv_grouped
extern "C" __global__ void __launch_bounds__(THREADS)
    conv_grouped(const Held* __restrict__ x, const Held* __restrict__ w,
                 const Held* __restrict__ bias, Held* __restrict__ y, long long count) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const size_t n = i / OUTPUTS;
    const Index out = locate<WRITES, OH, OW, M>(int(i % OUTPUTS));
    const int first = out.c / MAPS * CHANNELS;
    float sum = 0.0f;
    for (int r = 0; r < R; ++r) {
        const int iy = out.y * STRIDE_Y + r * DILATION_Y - ABOVE;
        for (int s = 0; s < S; ++s) {
            const int ix = out.x * STRIDE_X + s * DILATION_X - LEFT;
            const bool inside = iy >= 0 && iy < H && ix >= 0 && ix < W;
            for (int c = 0; c < CHANNELS; ++c) {
                const float value =
                    inside ? Value::load(x[offset<READS, H, W, CH>(n, iy, ix, first + c)]) : 0.0f;
                sum += value * Value::load(w[((r * S + s) * CHANNELS + c) * M + out.c]);
            }
        }
    }
    if (BIAS) sum += Value::load(bias[out.c]);
    if (RELU && sum < 0.0f) sum = 0.0f;  // NaN is not
    y[i] = Value::store(sum);
}
#endif
