// mma.sync, ldmatrix and cp.async on a CPU, for kernels of blocks that stand alone: a block's
// threads are the fibers of cpu_cluster.hpp. A tensor core adds exactly and cuts what a float does
// not hold, towards zero. A copy lands when it is issued or when it is waited for, by chance; one
// from outside what may be read is a mistake, and so is one that nobody waited for.
#pragma once
#include <deque>

#include "cpu_wgmma.hpp"

inline void atomicMax(unsigned* to, unsigned v) { *to = std::max(*to, v); }

namespace cpu {

struct Copy {
    unsigned to;
    const void* from;
    bool there;
    unsigned bytes;
    void land() const {
        if (there)
            std::memcpy(at(to), from, bytes);
        else
            std::memset(at(to), 0, bytes);
        unfenced[to] = now->thread;
    }
};
static std::map<unsigned, std::deque<std::vector<Copy>>> groups;  // of a thread; the last is open

inline std::deque<std::vector<Copy>>& own_groups() {
    auto& own = groups[now->thread];
    if (own.empty()) own.emplace_back();
    return own;
}
inline void copy(const void* to, const void* from, bool there, unsigned bytes = 16) {
    if (!may_be_read(from, bytes)) return;
    const Copy made = {ptx::shared(to), from, there, bytes};
    if (made.to % bytes) mistake = "a copy that is not aligned";
    if (random() % 4 == 0)
        made.land();
    else
        own_groups().back().push_back(made);
}

struct Fragments {
    uint4 a[WARP];
    uint2 b[WARP];
};
static std::map<unsigned, std::array<Fragments, 2>> fragments;  // of a warp, in turns
static std::map<unsigned, unsigned> products;                   // of a thread, so far

__attribute__((optimize("O2"))) inline void multiply(float (&d)[4], uint4 a, uint2 b, bool adds) {
    const unsigned lane = now->thread % WARP;
    Fragments& all = fragments[now->thread / WARP][products[now->thread]++ % 2];
    all.a[lane] = a, all.b[lane] = b;
    exchange(0);
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = adds ? d[i] : 0.0;
        for (int k = 0; k < 16; ++k) {
            const uint4& left = all.a[row % 8 * 4 + k % 8 / 2];
            const uint2& right = all.b[column * 4 + k % 8 / 2];
            const unsigned words[] = {left.x, left.y, left.z, left.w};
            const unsigned word = words[k / 8 * 2 + row / 8], other = k / 8 ? right.y : right.x;
            sum += double(half_value(word >> k % 2 * 16 & 0xffff)) *
                   half_value(other >> k % 2 * 16 & 0xffff);
        }
        d[i] = cut(sum);
    }
}
__attribute__((optimize("O2"))) inline void multiply_tf32(float (&d)[4], uint4 a, uint2 b) {
    const unsigned lane = now->thread % WARP;
    Fragments& all = fragments[now->thread / WARP][products[now->thread]++ % 2];
    all.a[lane] = a, all.b[lane] = b;
    exchange(0);
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = d[i];
        for (int k = 0; k < 8; ++k) {
            const uint4& left = all.a[row % 8 * 4 + k % 4];
            const uint2& right = all.b[column * 4 + k % 4];
            const unsigned words[] = {left.x, left.y, left.z, left.w};
            sum += double(as_tf32(words[k / 4 * 2 + row / 8])) * as_tf32(k / 4 ? right.y : right.x);
        }
        d[i] = cut(sum);
    }
}

template <class... A, std::size_t... I>
const char* run_with(void (*kernel)(A...), unsigned grid, unsigned threads, std::size_t bytes,
                     unsigned seed, void** args, std::index_sequence<I...>) {
    groups.clear(), fragments.clear(), products.clear();
    const char* found = run_grid(kernel, grid, threads, bytes, seed,
                                 *static_cast<std::remove_reference_t<A>*>(args[I])...);
    for (const auto& [thread, own] : groups)
        for (const auto& group : own)
            if (!group.empty() && !found) found = "copies nobody waited for";
    return found;
}
template <class... A>
const char* run_kernel(void (*kernel)(A...), unsigned grid, unsigned threads, std::size_t bytes,
                       unsigned seed, void** args) {
    return run_with(kernel, grid, threads, bytes, seed, args, std::index_sequence_for<A...>());
}

}  // namespace cpu

#define RUN(name, kernel)                                                              \
    extern "C" const char* name(unsigned grid, unsigned threads, unsigned long bytes,   \
                                unsigned seed, void** args) {                           \
        return cpu::run_kernel(kernel, grid, threads, bytes, seed, args);               \
    }

extern "C" unsigned waited() { return cpu::waited; }

extern "C" void may_read(const char* from, std::size_t bytes) {
    if (from == nullptr)
        cpu::readable.clear();
    else
        cpu::readable.push_back({from, bytes});
}

struct Split {
    unsigned high, low;
};
inline unsigned round_tf32(float v) {  // ties away from zero
    return std::isfinite(v) ? std::bit_cast<unsigned>(v) + 0x1000 & ~0x1fffu : std::bit_cast<unsigned>(v);
}
inline Split split_tf32(float v) {
    const unsigned high = round_tf32(v);
    return {high, round_tf32(v - std::bit_cast<float>(high))};
}

inline unsigned short half_bits(float value) { return cpu::round_half(value); }

inline void multiply_16x8x8(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                            unsigned b1) {
    cpu::multiply_tf32(d, {a0, a1, a2, a3}, {b0, b1});
}

inline uint2 __ldg(const uint2* from) { return *from; }

namespace ptx {

inline void copy16(u32 to, const void* from) { cpu::copy(cpu::at(to), from, true); }
inline void copy16(float* to, const float* from) { cpu::copy(to, from, true); }
inline void copy16_or_zero(float* to, const float* from, bool there) { cpu::copy(to, from, there); }
inline void copy4_or_zero(float* to, const float* from, bool there) {
    cpu::copy(to, from, there, 4);
}
inline void arrive_after_copies(u32 bar) {
    for (const auto& group : cpu::own_groups())
        for (const auto& copy : group) copy.land();
    cpu::own_groups().clear();
    barrier_arrive(bar);
}
inline void copy_commit() { cpu::own_groups().emplace_back(); }
template <int PENDING>
void copy_wait() {
    auto& own = cpu::own_groups();
    while (own.size() > PENDING + 1) {
        for (const auto& copy : own.front()) copy.land();
        own.pop_front();
    }
}
inline void mma_start(float (&d)[4], uint4 a, uint2 b) { cpu::multiply(d, a, b, false); }
inline void mma_add(float (&d)[4], uint4 a, uint2 b) { cpu::multiply(d, a, b, true); }
inline u32 load_shared_anew(u32 from) { return load_shared(from); }
inline uint2 low2(uint4 v) { return {v.x, v.y}; }
inline uint2 high2(uint4 v) { return {v.z, v.w}; }
inline uint4 load_matrices(u32 from) {
    if (from % 16) cpu::mistake = "a matrix's row that is not aligned";
    const unsigned* rows = cpu::exchange(from);
    const unsigned lane = cpu::now->thread % 32;
    u32 v[4];
    for (int i = 0; i < 4; ++i) std::memcpy(v + i, cpu::at(rows[8 * i + lane / 4] + lane % 4 * 4), 4);
    return {v[0], v[1], v[2], v[3]};
}

}  // namespace ptx
