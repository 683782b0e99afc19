// What conv1 leaves for conv2: pool1's 8x8 tiles at transform points, in groups of 8 images,
// [group][point x][point y][channel/BK][image][BK][4 tiles], and the pooling both do.
#pragma once
#include "stages/fused/cuda_cores/winograd.cuh"

constexpr int MAPS1 = 32;
constexpr int GROUP = 8;                                 // images
constexpr int IMAGE_TILES = 4;
constexpr int IMAGE_POINT = MAPS1 * IMAGE_TILES;         // [channel][tile] of a point and image
constexpr int POINT = GROUP * IMAGE_POINT;
constexpr int POINT_COLUMN = POINTS * POINT;
constexpr int WARP = 32;

__device__ __forceinline__ float relu_sum(float a, float b, float c, float d) {
    return (fmaxf(a, 0.0f) + fmaxf(b, 0.0f)) + (fmaxf(c, 0.0f) + fmaxf(d, 0.0f));
}
