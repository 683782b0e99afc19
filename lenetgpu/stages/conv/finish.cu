// y = relu(y + bias[map] + add), each part if BIAS, ADD and RELU say so: for convolutions whose
// kernel does not do it. EACH outputs a thread, THREADS apart, so that loads coalesce and overlap.
#include "stages/element.cuh"
#include "stages/layout.cuh"

using Value = Element<DTYPE>;
using Held = Value::Held;

#ifdef ENTRY_conv_finish
extern "C" __global__ void __launch_bounds__(THREADS)
    conv_finish(Held* __restrict__ y, const Held* __restrict__ bias, const Held* __restrict__ add,
                long long count) {
    const long long first = (long long)blockIdx.x * THREADS * EACH + threadIdx.x;
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const long long i = first + k * THREADS;
        if (i >= count) return;
        float sum = Value::load(y[i]);
        if (BIAS) sum += Value::load(bias[locate<WRITES, OH, OW, M>(int(i % (OH * OW * M))).c]);
        if (ADD) sum += Value::load(add[i]);
        if (RELU && sum < 0.0f) sum = 0.0f;  // NaN is not
        y[i] = Value::store(sum);
    }
}
#endif
