// Float pointers that remember what each thread asked of them; for kernels compiled as C++.
#include <cstddef>
#include <vector>

struct Asked {
    const float* base;
    long long index;
    unsigned block, thread;
};
static std::vector<Asked> asked[1024];

struct Traced {
    float* base;
    float& operator[](std::size_t i) const {
        const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
        const unsigned row = blockIdx.z * gridDim.y + blockIdx.y;
        asked[thread].push_back({base, (long long)i, row * gridDim.x + blockIdx.x, thread});
        return base[i];
    }
};

// How many there are, and where `into` is not null what they are; forgotten then.
extern "C" long long recorded(Asked* into) {
    long long n = 0;
    for (auto& of_thread : asked) {
        for (const Asked& one : of_thread)
            if (into) into[n++] = one;
            else ++n;
        if (into) of_thread.clear();
    }
    return n;
}
