// three_errors.cu, line 4, per_warp for sm_90a: expected it to compile, found: identifier "foo" is undefined (and 2 more errors)
extern "C" __global__ void per_warp(float* x) {
    int idle;
    x[0] = foo;
    x[1] = bar;
    x[2] = baz;
}
