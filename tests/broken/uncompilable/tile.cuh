#pragma once

__device__ float tile() { return nothing; }
