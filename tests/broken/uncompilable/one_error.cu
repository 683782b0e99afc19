// one_error.cu, line 3, per_warp for sm_90a: expected it to compile, found: identifier "foo" is undefined
extern "C" __global__ void per_warp(float* x) {
    x[0] = foo;
}
