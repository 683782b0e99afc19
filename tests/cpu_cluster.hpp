// A cluster's threads on a CPU, each a fiber of one thread: enough of CUDA for kernels that talk to
// other blocks and to the host. Stands for gpu/ptx/*.cuh. What a block stores in another arrives
// late and out of order; shared memory begins as NaN; a standstill ends the run.
#pragma once
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <ucontext.h>

#include "cpu_cuda.hpp"

#define __cluster_dims__(...)
#define __align__(n) alignas(n)
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline float __uint_as_float(unsigned v) { return std::bit_cast<float>(v); }
inline unsigned __float_as_uint(float v) { return std::bit_cast<unsigned>(v); }
inline int __ffs(unsigned v) { return v ? std::countr_zero(v) + 1 : 0; }

namespace cpu {

constexpr std::size_t STACK = 64 << 10;

struct Meeting {  // of some threads, which all wait for the last
    int there = 0;
    unsigned round = 0;
    unsigned given[32], found[32];
};
struct Bar {
    int count = 0, pending = 0;
    long bytes = 0;
    unsigned phase = 0;
    void settle() {
        if (count && pending == 0 && bytes == 0) ++phase, pending = count;
    }
};
struct Parcel {
    unsigned to, bar;
    std::vector<unsigned char> bytes;
};
struct Fiber {
    ucontext_t context;
    unsigned block, thread;
    std::function<bool()> ready;
    bool over = false;
    std::unique_ptr<char[]> stack;
};

static std::vector<Fiber> fibers;
static std::vector<std::vector<float4>> memories;
static std::map<unsigned, Bar> bars;
static std::map<unsigned, Meeting> meetings;
static std::vector<Parcel> parcels;
static std::mt19937 random;
static Fiber* now;
static ucontext_t scheduler;
static std::function<void()> body;
static unsigned first_block = 0;  // of the cluster's
static unsigned long resumed = 0;                   // how often any fiber was
static std::function<bool()> tick;                  // before each pass: is anything yet to come?
static std::function<bool(const Fiber&)> sleeping;  // who sits it out

inline void wait_until(std::function<bool()> ready) {
    if (ready()) return;
    now->ready = std::move(ready);
    swapcontext(&now->context, &scheduler);
}
inline void meet(unsigned key, int threads) {
    Meeting& meeting = meetings[key];
    const unsigned round = meeting.round;
    if (++meeting.there == threads) {
        meeting.there = 0, ++meeting.round;
        std::copy(meeting.given, meeting.given + 32, meeting.found);
    }
    wait_until([&meeting, round] { return meeting.round != round; });
}
// What the lanes of this warp give, seen by all of them.
inline const unsigned* exchange(unsigned mine) {
    const unsigned key = 1u << 31 | now->block << 8 | now->thread / 32;
    meetings[key].given[now->thread % 32] = mine;
    meet(key, 32);
    return meetings[key].found;
}
inline unsigned char* at(unsigned address) {
    return reinterpret_cast<unsigned char*>(memories[address >> 24].data()) + (address & 0xffffff);
}
inline float4* memory() { return memories[now->block].data(); }
inline void arrive_some() {
    std::shuffle(parcels.begin(), parcels.end(), random);
    for (std::size_t few = (parcels.size() + 1) / 2; few; --few) {
        const Parcel& parcel = parcels.back();
        std::memcpy(at(parcel.to), parcel.bytes.data(), parcel.bytes.size());
        bars[parcel.bar].bytes -= long(parcel.bytes.size());
        bars[parcel.bar].settle();
        parcels.pop_back();
    }
}
inline void enter() {
    body();
    now->over = true;
}

// Whether all threads came to their end.
inline bool run(unsigned blocks, unsigned threads, std::size_t bytes, unsigned seed,
                std::function<void()> kernel) {
    bars.clear(), meetings.clear(), parcels.clear(), random.seed(seed);
    body = std::move(kernel);
    const float nan = std::bit_cast<float>(0xffffffffu);
    memories.assign(blocks, std::vector<float4>(bytes / 16 + 1, {nan, nan, nan, nan}));
    fibers = std::vector<Fiber>(blocks * threads);
    std::vector<Fiber*> order;
    for (unsigned i = 0; i < fibers.size(); ++i) {
        Fiber& fiber = fibers[i];
        fiber.block = i / threads, fiber.thread = i % threads;
        fiber.stack = std::unique_ptr<char[]>(new char[STACK]);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, enter, 0);
        order.push_back(&fiber);
    }
    std::shuffle(order.begin(), order.end(), random);
    for (std::size_t left = order.size(); left;) {
        bool moved = (tick && tick()) || !parcels.empty();
        for (Fiber* fiber : order) {
            if (sleeping && sleeping(*fiber)) continue;
            if (fiber->over || (fiber->ready && !fiber->ready())) continue;
            fiber->ready = nullptr, now = fiber, moved = true, ++resumed;
            threadIdx = {fiber->thread, 0, 0}, blockIdx = {first_block + fiber->block, 0, 0};
            swapcontext(&scheduler, &fiber->context);
            left -= fiber->over;
        }
        arrive_some();
        if (!moved) return false;
    }
    return parcels.empty();
}

}  // namespace cpu

inline int __shfl_sync(unsigned, bool v, int lane) { return int(cpu::exchange(v)[lane % 32]); }
template <class T>
T __shfl_sync(unsigned, T v, int lane) {
    return std::bit_cast<T>(cpu::exchange(std::bit_cast<unsigned>(v))[lane % 32]);
}
template <class T>
T __shfl_xor_sync(unsigned, T v, int mask) {
    const unsigned lane = cpu::now->thread % 32;
    return std::bit_cast<T>(cpu::exchange(std::bit_cast<unsigned>(v))[lane ^ mask]);
}
inline unsigned __ballot_sync(unsigned, bool v) {
    const unsigned* all = cpu::exchange(v);
    unsigned bits = 0;
    for (int lane = 0; lane < 32; ++lane) bits |= all[lane] << lane;
    return bits;
}
inline bool __all_sync(unsigned, bool v) { return __ballot_sync(~0u, v) == ~0u; }
inline unsigned __reduce_max_sync(unsigned, unsigned v) {
    const unsigned* all = cpu::exchange(v);
    return *std::max_element(all, all + 32);
}
#undef __syncwarp
inline void __syncwarp() { cpu::exchange(0); }

namespace ptx {

using u32 = unsigned;
using u64 = unsigned long long;

inline u32 shared(const void* p) {
    return cpu::now->block << 24 |
           u32(static_cast<const char*>(p) - reinterpret_cast<char*>(cpu::memory()));
}
inline u32 in_block(u32 at, u32 rank) { return (at & 0xffffff) | rank << 24; }
inline u32 cluster_rank() { return cpu::now->block; }
template <class T>
void post(u32 to, T v, u32 bar) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(&v);
    cpu::parcels.push_back({to, bar, {bytes, bytes + sizeof v}});
}
inline void store_cluster4(u32 to, float v, u32 bar) { post(to, v, bar); }
inline void store_cluster16(u32 to, uint4 v, u32 bar) { post(to, v, bar); }
inline void cluster_sync() { cpu::meet(0, int(cpu::fibers.size())); }
inline void sync(int id, int threads) { cpu::meet(cpu::now->block << 8 | id, threads); }
inline void barrier_init(u32 bar, u32 arrivals) {
    cpu::bars[bar] = {int(arrivals), int(arrivals)};
}
inline void barrier_init_fence() {}
inline void barrier_expect(u32 bar, u32 bytes) {
    cpu::bars[bar].bytes += bytes, --cpu::bars[bar].pending;
    cpu::bars[bar].settle();
}
inline void barrier_wait_cluster(u32 bar, u32 parity) {
    cpu::Bar& waited = cpu::bars[bar];
    cpu::wait_until([&waited, parity] { return (waited.phase & 1) != parity; });
}
template <int>
void fewer_registers() {}
template <int>
void more_registers() {}
inline uint4 load_here(const uint4* from) { return *from; }
// Two lanes' 16 bytes side by side are read at once, as a GPU does.
inline uint4 load_host(const uint4* from) {
    static std::map<std::uintptr_t, std::array<u32, 8>> halves;
    const auto address = reinterpret_cast<std::uintptr_t>(from), sector = address & ~31ul;
    auto* words = reinterpret_cast<const u32*>(sector);
    auto [held, first] = halves.try_emplace(sector);
    if (first)
        for (int i = 7; i >= 0; --i) held->second[i] = __atomic_load_n(words + i, __ATOMIC_ACQUIRE);
    const u32* half = held->second.data() + (address & 31) / 4;
    const uint4 v = {half[0], half[1], half[2], half[3]};
    if (!first) halves.erase(held);
    return v;
}
inline void release_host(u32* to, u32 v) { __atomic_store_n(to, v, __ATOMIC_RELEASE); }
inline void store_host(uint4* to, uint4 v) {
    std::memcpy(to, &v, 12);
    release_host(&to->w, v.w);
}
inline void fence_host() { std::atomic_thread_fence(std::memory_order_acq_rel); }
inline u64 nanoseconds() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}
inline u32 clocks() { return u32(nanoseconds()); }

}  // namespace ptx
