// tile.cuh, line 3, per_warp of wrong_header.cu for sm_90a: expected it to compile, found: identifier "nothing" is undefined
#include "tile.cuh"
extern "C" __global__ void per_warp(float* x) {
    x[0] = tile();
}
