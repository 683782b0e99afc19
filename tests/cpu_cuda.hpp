// A block's threads on a CPU: enough of CUDA for kernels without PTX and with few shuffles.
// Blocks run one after another; threads all at once where a kernel waits for them, else in turn.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstddef>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

struct Dim {
    unsigned x, y, z;
};
struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(4) uchar4 {
    unsigned char x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T>
T __ldcg(const T* at) {
    return *at;
}
template <class T>
void __stcg(T* at, T value) {
    *at = value;
}

static thread_local Dim threadIdx;
static Dim blockIdx, blockDim, gridDim;
static std::unique_ptr<std::barrier<>> block_barrier;
static bool waits = false;  // whether a kernel of this file has __syncthreads
using std::fmaf, std::max, std::min;
inline float fmaxf(float a, float b) { return std::fmax(a, b); }
inline long long min(long long a, int b) { return std::min<long long>(a, b); }
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return ((unsigned long long)high << 32 | low) >> by % 32;
}

inline long long clock64() {  // ticks when it is read
    static long long ticks = 0;
    return ++ticks;
}
inline float atomicAdd(float* to, float by) { return std::atomic_ref<float>(*to).fetch_add(by); }

// A 3D texture of float32 with a border of zeros, read at the nearest element.
struct Texture {
    const float* data;
    int width, height, depth;
};
using cudaTextureObject_t = unsigned long long;

template <class T>
T tex3D(cudaTextureObject_t texture, float x, float y, float z) {
    const Texture& t = *reinterpret_cast<const Texture*>(texture);
    const int i = int(std::floor(x)), j = int(std::floor(y)), k = int(std::floor(z));
    const bool there = i >= 0 && i < t.width && j >= 0 && j < t.height && k >= 0 && k < t.depth;
    return there ? t.data[(std::size_t(k) * t.height + j) * t.width + i] : 0.0f;
}

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __shared__ static
#define __constant__
#define __syncthreads() block_barrier->arrive_and_wait()
#define __syncwarp() block_barrier->arrive_and_wait()

// What whole blocks of one row of threads say together; every thread must come here.
static int said[1024];

inline int heard(int value, unsigned from) {
    said[threadIdx.x] = value;
    __syncthreads();
    const int found = said[from];
    __syncthreads();
    return found;
}
inline int __shfl_sync(unsigned, int value, int lane) {
    return heard(value, threadIdx.x / 32 * 32 + lane % 32);
}
inline int __shfl_up_sync(unsigned, int value, int by) {
    return heard(value, threadIdx.x - (int(threadIdx.x % 32) < by ? 0 : by));
}

template <class... A, std::size_t... I>
void call(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<A>*>(args[I])...);
}

template <class... A>
void start(void (*kernel)(A...), Dim grid, unsigned x, unsigned y, bool together, void** args) {
    gridDim = grid, blockDim = {x, y, 1};
    const auto thread = [&](unsigned t) {
        threadIdx = {t % x, t / x, 0};
        call(kernel, args, std::index_sequence_for<A...>());
        if (together) block_barrier->arrive_and_drop();
    };
    for (unsigned b = 0; b < grid.x * grid.y * grid.z; ++b) {
        blockIdx = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
        if (!together) {
            for (unsigned t = 0; t < x * y; ++t) thread(t);
            continue;
        }
        block_barrier = std::make_unique<std::barrier<>>(x * y);
        std::vector<std::thread> all;
        for (unsigned t = 0; t < x * y; ++t) all.emplace_back(thread, t);
        for (auto& one : all) one.join();
    }
}

#define RUN(kernel)                                                                            \
    extern "C" void run(unsigned* n, unsigned x, unsigned y, bool together, void** args) {     \
        start(kernel, Dim{n[0], n[1], n[2]}, x, y, together, args);                            \
    }
