// uint8 pixels to float32 in 0..1, four pixels per thread and one at the ragged end.
// From -D THREADS, PIXEL_SCALE.

extern "C" __global__ void __launch_bounds__(THREADS)
    scale_pixels(const unsigned char* __restrict__ x, float* __restrict__ y, long long pixels) {
    const long long i = 4 * ((long long)blockIdx.x * THREADS + threadIdx.x);
    if (i + 4 <= pixels && ((size_t)x & 3) == 0) {
        const uchar4 p = *reinterpret_cast<const uchar4*>(x + i);
        *reinterpret_cast<float4*>(y + i) =
            make_float4(p.x / PIXEL_SCALE, p.y / PIXEL_SCALE, p.z / PIXEL_SCALE, p.w / PIXEL_SCALE);
        return;
    }
    for (long long j = i; j < i + 4 && j < pixels; ++j) y[j] = x[j] / PIXEL_SCALE;
}
