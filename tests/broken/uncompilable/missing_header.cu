// missing_header.cu, line 2, per_warp for sm_90a: expected it to compile, found: cannot open source file "nowhere.cuh"
#include "nowhere.cuh"
extern "C" __global__ void per_warp(float* x) {
}
