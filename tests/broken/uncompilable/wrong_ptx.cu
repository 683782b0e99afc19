// wrong_ptx.cu, per_warp for sm_90a: expected it to compile, found: Unknown modifier '.bar' (and 1 more error)
extern "C" __global__ void per_warp(float* x) {
    asm("foo.bar;");
}
