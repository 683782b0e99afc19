// How the images of a launch are shared out to its warpgroups.
#pragma once
#include "stages/fused/wgmma/conv1.cuh"

// Images of one warpgroup of `groups`, IMAGES a round: from `first` on in strides, before `end`.
struct Share {
    int first, stride, end;

    __device__ __forceinline__ Share(int group, int groups, int n)
        : first(IMAGES * group), stride(IMAGES * groups), end(n) {}
};
