// Hopper's tensor cores on a CPU, for kernels of blocks that stand alone or in clusters: their threads
// are the fibers of cpu_cluster.hpp. A warp's part of a wgmma is done at a moment drawn at random, right
// after its issue or a while after the warp began to wait; its accumulators are NaN until then.
// Reading what an ordinary store wrote and no fence followed is a mistake, and ends as one.
#pragma once
#include "cpu_cluster.hpp"

#define __align__(n) alignas(n)
#undef __syncthreads
#define __syncthreads() cpu::meet(0x40000000 | cpu::now->block, int(blockDim.x))

#define __shfl_sync shuffled  // cpu_cuda.hpp has one of int for threads that are no fibers
template <class T>
T shuffled(unsigned, T v, int lane) {
    return std::bit_cast<T>(cpu::exchange(std::bit_cast<unsigned>(v))[lane % 32]);
}

struct uint2 {
    unsigned x, y;
};
inline float __ldg(const float* from) { return *from; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= unsigned(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return result;
}

namespace cpu {

constexpr int WARP = 32;

inline unsigned short round_half(double x) {  // to nearest, even
    const unsigned sign = std::signbit(x) ? 0x8000 : 0;
    x = std::fabs(x);
    if (std::isnan(x)) return 0x7fff;
    int exponent;
    std::frexp(x, &exponent);
    const int step = x ? std::max(exponent - 11, -24) : -24;
    const double whole = std::nearbyint(std::ldexp(x, -step));
    if (std::ldexp(whole, step) >= 65536) return sign | 0x7c00;
    if (step == -24) return sign | unsigned(whole);
    return sign | (unsigned(step + 24) << 10) + unsigned(whole);
}
inline float half_value(unsigned short bits) {
    static const std::vector<float> values = [] {
        std::vector<float> made(1 << 16);
        for (int i = 0; i < 1 << 16; ++i) {
            const int exponent = i >> 10 & 31, fraction = i & 1023;
            const double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                                : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                                               : std::ldexp(fraction, -24);
            made[i] = float(i & 0x8000 ? -size : size);
        }
        return made;
    }();
    return values[bits];
}
template <class F>
unsigned each_half(F f, unsigned a, unsigned b = 0, unsigned c = 0) {
    const auto one = [&](int shift) {
        return round_half(f(half_value(a >> shift & 0xffff), half_value(b >> shift & 0xffff),
                            half_value(c >> shift & 0xffff)));
    };
    return one(0) | unsigned(one(16)) << 16;
}

struct Operand {  // a matrix in a block's shared memory, K-major, in cores or in swizzled rows
    unsigned long long bits;
    unsigned block;
    unsigned address(int row, int byte) const {
        const auto field = [this](int at) { return unsigned(bits >> at & 0x3fff) << 4; };
        const unsigned cores = (block << 24) + field(0) + row / 8 * field(32);
        if (!(bits >> 62)) return cores + byte / 16 * field(16) + row % 8 * 16 + byte % 16;
        const unsigned at = cores + row % 8 * 128 + byte;
        return at ^ (at >> 7 & 7) << 4;
    }
    template <class T>
    T read(int row, int k) const;
};
enum class Of { FP16, BYTES, SPARSE_BYTES, TF32 };
struct Product {  // a warp's 16 rows of it
    int threads = 0, columns = 0;
    bool adds = false, from_registers = false;
    Of of = Of::FP16;
    Operand a, b;
    uint4 held[WARP];
    unsigned metadata[WARP];
    void* d[WARP];
};
struct Warp {
    std::vector<std::unique_ptr<Product>> products;
    std::size_t done = 0, wanted = 0;
    std::size_t issued[WARP] = {};
    std::vector<std::size_t> groups[WARP];
};
static std::map<unsigned, Warp> warps;
static std::map<unsigned, unsigned> unfenced;  // word -> the thread that stored it
static const char* mistake = nullptr;
static unsigned waited = 0;  // threads of a grid, for the one before it

struct Range {
    const char* from;
    std::size_t bytes;
};
static std::vector<Range> readable;  // by copies; empty: all that there is

inline bool may_be_read(const void* from, std::size_t bytes) {
    const auto* first = static_cast<const char*>(from);
    const auto holds = [=](const Range& r) {
        return r.from <= first && first + bytes <= r.from + r.bytes;
    };
    const bool held = readable.empty() || std::any_of(readable.begin(), readable.end(), holds);
    if (!held) mistake = "a copy from outside what may be read";
    return held;
}

template <class T>
T Operand::read(int row, int k) const {
    const unsigned at = address(row, k * int(sizeof(T)));
    if (unfenced.count(at / 4 * 4)) mistake = "wgmma reads what was stored without a fence";
    T v;
    std::memcpy(&v, cpu::at(at), sizeof v);
    return v;
}
// Lane and four of a row's metadata: ptx/wgmma_sparse.cuh.
inline int place(const Product& p, int row, int k) {
    const int four = k / 2, lane = row / 8 + four / 8 * 2 + row % 8 * 4;
    const unsigned pair = p.metadata[lane] >> four % 8 * 4 & 15;
    if ((pair & 3) >= pair >> 2) mistake = "indices that do not ascend";
    return 4 * four + int(k % 2 ? pair >> 2 : pair & 3);
}
// What is multiplied by zeros alone may be anything, but must be there.
inline void carry_out_bytes(const Product& p, int first_row) {
    const int deep = p.of == Of::SPARSE_BYTES ? 64 : 32;
    static int a[16][64], b[256][64];
    bool used[64] = {};
    std::memset(a, 0, sizeof a), std::memset(b, 0, sizeof b);
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < 32; ++k) {
            const int at = p.of == Of::SPARSE_BYTES ? place(p, row, k) : k;
            const uint4& held = p.held[row % 8 * 4 + k / 4 % 4];
            const unsigned words[] = {held.x, held.y, held.z, held.w};
            a[row][at] = p.from_registers
                             ? (signed char)(words[k / 16 * 2 + row / 8] >> k % 4 * 8)
                             : p.a.read<signed char>(first_row + row, k);
            used[at] |= a[row][at] != 0;
        }
    for (int column = 0; column < p.columns; ++column)
        for (int k = 0; k < deep; ++k) {
            if ((p.b.address(column, k) & 0xffffff) >= memories[0].size() * 16)
                mistake = "wgmma reads beyond shared memory";
            else if (used[k])
                b[column][k] = p.b.read<unsigned char>(column, k);
        }
    for (int t = 0; t < WARP; ++t)
        for (int i = 0; i < p.columns / 2; ++i) {
            const int row = t / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
            int& d = static_cast<int*>(p.d[t])[i];
            int sum = p.adds ? d : 0;
            for (int k = 0; k < deep; ++k) sum += a[row][k] * b[column][k];
            d = sum;
        }
}
__attribute__((optimize("O2"))) inline void carry_out(const Product& p, int first_row) {
    if (p.of != Of::FP16) return carry_out_bytes(p, first_row);
    static float a[16][16], b[256][16];
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < 16; ++k) {
            if (!p.from_registers) {
                a[row][k] = half_value(p.a.read<unsigned short>(first_row + row, k));
                continue;
            }
            const uint4& held = p.held[row % 8 * 4 + k % 8 / 2];
            const unsigned words[] = {held.x, held.y, held.z, held.w};
            a[row][k] = half_value(words[k / 8 * 2 + row / 8] >> k % 2 * 16 & 0xffff);
        }
    for (int column = 0; column < p.columns; ++column)
        for (int k = 0; k < 16; ++k) b[column][k] = half_value(p.b.read<unsigned short>(column, k));
    for (int t = 0; t < WARP; ++t)
        for (int i = 0; i < p.columns / 2; ++i) {
            const int row = t / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
            float& d = static_cast<float*>(p.d[t])[i];
            float sum = p.adds ? d : 0.0f;
            for (int k = 0; k < 16; ++k) sum += a[row][k] * b[column][k];
            d = sum;
        }
}
inline float as_tf32(unsigned bits) { return std::bit_cast<float>(bits & ~0x1fffu); }
inline float cut(double v) {  // what a float does not hold, towards zero
    if (!std::isfinite(v)) return float(v);
    const float near = float(v);
    return std::fabs(near) > std::fabs(v) ? std::nextafter(near, 0.0f) : near;
}
__attribute__((optimize("O2"))) inline void carry_out_tf32(const Product& p) {
    static float b[256][8];
    for (int column = 0; column < p.columns; ++column)
        for (int k = 0; k < 8; ++k) b[column][k] = as_tf32(p.b.read<unsigned>(column, k));
    for (int t = 0; t < WARP; ++t)
        for (int i = 0; i < p.columns / 2; ++i) {
            const int row = t / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
            float& d = static_cast<float*>(p.d[t])[i];
            double sum = p.adds ? d : 0.0;
            for (int k = 0; k < 8; ++k) {
                const uint4& held = p.held[row % 8 * 4 + k % 4];
                const unsigned words[] = {held.x, held.y, held.z, held.w};
                sum += double(as_tf32(words[k / 4 * 2 + row / 8])) * b[column][k];
            }
            d = cut(sum);
        }
}
inline void advance(unsigned number, Warp& warp, std::size_t until) {
    for (; warp.done < until && warp.done < warp.products.size(); ++warp.done) {
        const Product& next = *warp.products[warp.done];
        if (next.threads < WARP) return;
        if (next.of == Of::TF32)
            carry_out_tf32(next);
        else
            carry_out(next, number % 4 * 16);
    }
}

// Bulk copies may land at once or take long, and some warps or whole warpgroups are much slower than others, for a
// while.
struct Load {
    int passes;
    Parcel parcel;
};
static std::vector<Load> loads;
static std::vector<int> pace;  // of a warp: one pass in so many
static unsigned long pass, last_resumed, idle;
constexpr unsigned long LONG = 100;  // passes without a step: a standstill

inline unsigned thread_of(const Fiber& fiber) { return fiber.block * blockDim.x + fiber.thread; }
inline bool held_up(unsigned warp) { return pass % pace[warp]; }
inline bool time_passes() {
    ++pass;
    pace.resize(fibers.size() / WARP, 1);
    if (random() % 128 == 0) {
        const unsigned one = random() % pace.size(), size = random() % 3 ? 4 : 1;
        const int passes = random() % 2 ? 1 : 1 << random() % 6;
        for (unsigned i = 0; i < size; ++i) pace[one / size * size + i] = passes;
    }
    for (auto& load : loads)
        if (--load.passes == 0) parcels.push_back(load.parcel);
    std::erase_if(loads, [](const Load& load) { return load.passes <= 0; });
    bool waits = !loads.empty();
    for (auto& [number, warp] : warps) {
        waits |= warp.done < warp.wanted;
        if (!held_up(number) && random() % 4 == 0) advance(number, warp, warp.wanted);
    }
    idle = waits || resumed != last_resumed ? 0 : idle + 1;
    last_resumed = resumed;
    return idle < LONG;
}
inline Warp& own_warp() { return warps[thread_of(*now) / WARP]; }

inline void give_back(float* d, int size) { std::fill(d, d + size, NAN); }
inline void give_back(int* d, int size) { std::fill(d, d + size, 0x5a5a5a5a); }

template <class T>
void issue(T* d, int columns, bool adds, const uint4* held, unsigned long long a,
           unsigned long long b, Of of = Of::FP16, unsigned metadata = 0) {
    Warp& warp = own_warp();
    const int lane = int(now->thread) % WARP;
    const std::size_t number = warp.issued[lane]++;
    if (number == warp.products.size()) {
        warp.products.push_back(std::make_unique<Product>());
        Product& made = *warp.products.back();
        made.columns = columns, made.adds = adds, made.from_registers = held != nullptr;
        made.of = of, made.a = {a, now->block}, made.b = {b, now->block};
    }
    Product& product = *warp.products[number];
    if (product.columns != columns || product.adds != adds || product.of != of || product.a.bits != a ||
        product.b.bits != b)
        mistake = "lanes of a warp issue different products";
    if (held) product.held[lane] = *held;
    product.d[lane] = d, product.metadata[lane] = metadata;
    if (!adds) give_back(d, columns / 2);
    if (++product.threads == WARP && random() % 3 == 0)
        advance(thread_of(*now) / WARP, warp, number + 1);
}

// By a thread that tells or sends something to a block of its cluster.
inline void reach(unsigned block) {
    const auto in_it = [block](const Fiber& fiber) { return fiber.block == block && !fiber.over; };
    if (std::none_of(fibers.begin(), fibers.end(), in_it)) mistake = "a block that is gone is told";
}

// Runs the clusters of a grid one after another; the first mistake, or null.
template <unsigned BLOCKS = 1, class... A>
const char* run_grid(void (*kernel)(A...), unsigned grid, unsigned threads, std::size_t bytes,
                     unsigned seed, A... arguments) {
    mistake = nullptr, waited = 0;
    gridDim = {grid, 1, 1}, blockDim = {threads, 1, 1};
    if (grid % BLOCKS) return "a grid that is not whole clusters";
    for (first_block = 0; first_block < grid && !mistake; first_block += BLOCKS) {
        warps.clear(), unfenced.clear(), loads.clear(), pace.clear(), idle = 0;
        tick = time_passes;
        sleeping = [](const Fiber& fiber) { return held_up(thread_of(fiber) / WARP); };
        if (!run(BLOCKS, threads, bytes, seed + first_block, [=] { kernel(arguments...); }))
            return "threads wait for each other";
        for (const auto& [number, warp] : warps)
            if (warp.done < warp.products.size()) mistake = "products nobody waited for";
        if (!loads.empty() || !parcels.empty()) mistake = "copies nobody waited for";
    }
    return mistake;
}

}  // namespace cpu

namespace ptx {

inline void start_next_grid() {}
inline void wait_for_grid() { ++cpu::waited; }
inline void barrier_arrive(u32 bar) { --cpu::bars[bar].pending, cpu::bars[bar].settle(); }
inline void barrier_wait(u32 bar, u32 parity) { barrier_wait_cluster(bar, parity); }
inline void barrier_arrive_cluster(u32 bar) { cpu::reach(bar >> 24), barrier_arrive(bar); }
inline void cluster_start() { cluster_sync(); }
inline void bulk_load(u32 to, const void* from, u32 bytes, u32 bar) {
    const auto* first = static_cast<const unsigned char*>(from);
    if (to % 16 || bytes % 16 || std::uintptr_t(from) % 16)
        cpu::mistake = "a bulk copy that is not of 16s";
    if (!cpu::may_be_read(from, bytes)) return;
    const unsigned most[] = {1, 1, 256, 256, 256, 256, 256, 8192};
    const int passes = 1 + int(cpu::random() % most[cpu::random() % 8]);
    cpu::loads.push_back({passes, {to, bar, {first, first + bytes}}});
}
inline void bulk_load(u32 to, const void* from, u32 bytes, u32 bar, unsigned short blocks) {
    for (u32 block = 0; blocks >> block; ++block)
        if (blocks >> block & 1)
            cpu::reach(block), bulk_load(in_block(to, block), from, bytes, in_block(bar, block));
}
inline void async_fence() {
    const unsigned own = cpu::thread_of(*cpu::now);
    std::erase_if(cpu::unfenced, [own](const auto& s) { return s.second == own; });
}
template <class T>
void store_shared(u32 to, T v) {
    if (to % sizeof v) cpu::mistake = "a store that is not aligned";
    std::memcpy(cpu::at(to), &v, sizeof v);
    for (u32 word = 0; word < sizeof v; word += 4) cpu::unfenced[to + word] = cpu::thread_of(*cpu::now);
}
template <class T>
T load_as(u32 from) {
    if (from % sizeof(T)) cpu::mistake = "a load that is not aligned";
    T v;
    std::memcpy(&v, cpu::at(from), sizeof v);
    return v;
}
inline u32 load_shared(u32 from) { return load_as<u32>(from); }
inline uint2 load_shared2(u32 from) { return load_as<uint2>(from); }
inline uint4 load_shared4(u32 from) { return load_as<uint4>(from); }
inline uint2 load_constant(const uint2* from) { return *from; }
inline uint4 load_constant(const uint4* from) { return *from; }

inline u32 half2(float low, float high) {
    return cpu::round_half(low) | u32(cpu::round_half(high)) << 16;
}
inline u32 half2_relu(float low, float high) {
    return half2(low > 0 ? low : 0 * low, high > 0 ? high : 0 * high) & 0x7fff7fff;
}
inline float low_half(u32 pair) { return cpu::half_value(pair & 0xffff); }
inline float high_half(u32 pair) { return cpu::half_value(pair >> 16); }
inline u32 rest2(float low, float high, u32 pair) {
    return half2(low - low_half(pair), high - high_half(pair));
}
inline u32 add2(u32 a, u32 b) {
    return cpu::each_half([](double x, double y, double) { return x + y; }, a, b);
}
inline u32 subtract2(u32 a, u32 b) {
    return cpu::each_half([](double x, double y, double) { return x - y; }, a, b);
}
inline u32 min2(u32 a, u32 b) {
    return cpu::each_half([](double x, double y, double) { return std::min(x, y); }, a, b);
}
inline u32 multiply_add2(u32 a, u32 b, u32 c) {
    return cpu::each_half([](double x, double y, double z) { return x * y + z; }, a, b, c);
}

inline u64 operand(u32 start, u32 k_step, u32 row_step) {
    return u64((start & 0x3ffff) >> 4) | u64(k_step >> 4) << 16 | u64(row_step >> 4) << 32;
}
inline u64 swizzled(u32 start) { return operand(start, 16, 1024) | u64(1) << 62; }
inline void here(u64&) {}
inline void here(u32&) {}
template <class T, int SIZE>
void here(const T (&)[SIZE], bool never, u32) {
    if (never) cpu::mistake = "what never happens does";
}
inline void wgmma_fence() {}
template <class T, int SIZE>
void settle(T (&)[SIZE]) {}
template <bool ADD, int SIZE>
void wgmma(float (&d)[SIZE], u64 a, u64 b) {
    cpu::issue(d, 2 * SIZE, ADD, nullptr, a, b);
}
template <bool ADD, int SIZE>
void wgmma(float (&d)[SIZE], const uint4& a, u64 b) {
    cpu::issue(d, 2 * SIZE, ADD, &a, 0, b);
}
template <bool ADD, int SIZE>
void wgmma(int (&d)[SIZE], u64 a, u64 b) {
    cpu::issue(d, 2 * SIZE, ADD, nullptr, a, b, cpu::Of::BYTES);
}
template <bool ADD, int SIZE>
void wgmma_sparse(int (&d)[SIZE], u64 a, u64 b, u32 metadata) {
    cpu::issue(d, 2 * SIZE, ADD, nullptr, a, b, cpu::Of::SPARSE_BYTES, metadata);
}
template <bool ADD, int SIZE>
void wgmma_sparse(int (&d)[SIZE], const uint4& a, u64 b, u32 metadata) {
    cpu::issue(d, 2 * SIZE, ADD, &a, 0, b, cpu::Of::SPARSE_BYTES, metadata);
}
template <bool ADD, int SIZE>
void wgmma_tf32(float (&d)[SIZE], const u32 (&a)[4], u64 b) {
    const uint4 held = {a[0], a[1], a[2], a[3]};
    cpu::issue(d, 2 * SIZE, ADD, &held, 0, b, cpu::Of::TF32);
}
inline void wgmma_commit() {
    const int lane = int(cpu::now->thread) % cpu::WARP;
    cpu::own_warp().groups[lane].push_back(cpu::own_warp().issued[lane]);
}
template <int PENDING>
void wgmma_wait() {
    cpu::Warp& warp = cpu::own_warp();
    const auto& own = warp.groups[cpu::now->thread % cpu::WARP];
    if (own.size() <= PENDING) return;
    const std::size_t until = own[own.size() - 1 - PENDING];
    warp.wanted = std::max(warp.wanted, until);
    cpu::wait_until([&warp, until] { return warp.done >= until; });
}

}  // namespace ptx
