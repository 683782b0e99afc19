// fp32 products on the tensor cores (sm_80): a float is the sum of two TF32 numbers, and three
// products of the parts carry 21 bits; the fourth, low x low, lies below fp32's own rounding.
#pragma once

struct Split {
    unsigned high, low;
};

__device__ __forceinline__ unsigned round_tf32(float v) {
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(v));
    return rounded;
}

__device__ __forceinline__ Split split_tf32(float v) {
    const unsigned high = round_tf32(v);
    return {high, round_tf32(v - __uint_as_float(high))};
}

// d[16][8] += a[16][8] x b[8][8]. With row = lane / 4 and q = lane % 4 a lane holds a[row][q],
// a[row + 8][q], a[row][q + 4], a[row + 8][q + 4]; b[q][row], b[q + 4][row]; and of d columns
// 2q and 2q + 1 of rows `row` and `row` + 8.
__device__ __forceinline__ void multiply_16x8x8(float (&d)[4], unsigned a0, unsigned a1,
                                                unsigned a2, unsigned a3, unsigned b0,
                                                unsigned b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3},"
        " {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same with split operands, the small products first.
__device__ __forceinline__ void multiply_split(float (&d)[4], const Split (&a)[4],
                                               const Split (&b)[2]) {
    multiply_16x8x8(d, a[0].low, a[1].low, a[2].low, a[3].low, b[0].high, b[1].high);
    multiply_16x8x8(d, a[0].high, a[1].high, a[2].high, a[3].high, b[0].low, b[1].low);
    multiply_16x8x8(d, a[0].high, a[1].high, a[2].high, a[3].high, b[0].high, b[1].high);
}
