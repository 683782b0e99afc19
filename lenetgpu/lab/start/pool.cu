// ReLU and the mean of each 2x2 window, from -D CH, OH, OW, THREADS.
// A thread computes one output; neighbouring threads take neighbouring columns of a map.
extern "C" __global__ void __launch_bounds__(THREADS)
    per_output(const float* __restrict__ x, float* __restrict__ y, long long outputs) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= outputs) return;  // the last block may be too large
    const int column = i % OW;
    const int row = i / OW % OH;
    const int c = i / (OW * OH) % CH;
    const long long n = i / (OW * OH * CH);
    float sum = 0.0f;
    for (int down = 0; down < 2; ++down)
        for (int right = 0; right < 2; ++right) {
            const int at = 2 * row + down, to = 2 * column + right;
            const float value = x[((n * 2 * OH + at) * 2 * OW + to) * CH + c];
            if (!(value < 0.0f)) sum += value;  // ReLU; a NaN stays one
        }
    y[((n * OH + row) * OW + column) * CH + c] = sum / 4;
}
