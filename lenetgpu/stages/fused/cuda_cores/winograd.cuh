// One-dimensional Winograd F(4,5): 4 outputs of a filter of 5 elements from 8 inputs by 8 products, at the transform
// points 0, 1, -1, 2, -2, 1/2, -1/2 and infinity (Lavin & Gray, arXiv 1509.09308). The filter's
// transform is made on the host; every coefficient here is a short binary fraction.
#pragma once

constexpr int POINTS = 8;   // products per tile and dimension
constexpr int OUTPUTS = 4;  // outputs per tile and dimension

__device__ __forceinline__ void transform_input(const float* d, float (&v)[POINTS]) {
    const float even1 = fmaf(-4.25f, d[4], d[2] + d[6]), odd1 = fmaf(-4.25f, d[3], d[1] + d[5]);
    const float even2 = fmaf(-1.25f, d[4], fmaf(0.25f, d[2], d[6]));
    const float odd2 = fmaf(-1.25f, d[3], fmaf(0.25f, d[1], d[5]));
    const float even3 = fmaf(-5.0f, d[4], fmaf(4.0f, d[2], d[6]));
    const float odd3 = fmaf(-5.0f, d[3], fmaf(4.0f, d[1], d[5]));
    v[0] = fmaf(5.25f, d[2] - d[4], d[6] - d[0]);
    v[1] = even1 + odd1;
    v[2] = even1 - odd1;
    v[3] = fmaf(2.0f, odd2, even2);
    v[4] = fmaf(-2.0f, odd2, even2);
    v[5] = fmaf(0.5f, odd3, even3);
    v[6] = fmaf(-0.5f, odd3, even3);
    v[7] = fmaf(5.25f, d[3] - d[5], d[7] - d[1]);
}

__device__ __forceinline__ void transform_output(const float (&m)[POINTS], float (&y)[OUTPUTS]) {
    const float sum1 = m[1] + m[2], sum2 = m[3] + m[4], sum3 = m[5] + m[6];
    const float odd1 = m[1] - m[2], odd2 = m[3] - m[4], odd3 = m[5] - m[6];
    y[0] = (m[0] + sum1) + (sum2 + sum3);
    y[1] = fmaf(0.5f, odd3, fmaf(2.0f, odd2, odd1));
    y[2] = fmaf(0.25f, sum3, fmaf(4.0f, sum2, sum1));
    y[3] = fmaf(0.125f, odd3, fmaf(8.0f, odd2, odd1 + m[7]));
}
