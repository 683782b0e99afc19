// What a warp waits for at one instruction, in clocks: STEPS of them, each of which needs the one
// before it; where nothing can need it (a store, a barrier, the clock) STEPS in a row. One warp, but
// for the barrier. The host takes the difference of two lengths. `next` is a cycle of LINKS addresses,
// each of the next one, `seed` what no compiler knows; `out` takes what is left.
// -D OP names the instruction; inline PTX keeps the compiler from folding a chain.

constexpr int MULTIPLY_ADD = 0, ADD = 1, MULTIPLY_64 = 2, MULTIPLY_ADD_INT = 3;
constexpr int SHARED = 4, LOCAL = 5, STORE_SHARED = 6, STORE_LOCAL = 7, CONSTANT = 8;
constexpr int FIRST_CACHE = 9, SECOND_CACHE = 10, BARRIER = 11, CLOCK = 12;
constexpr int LINKS = 16;
constexpr bool STORES = OP == STORE_SHARED || OP == STORE_LOCAL;
constexpr int TOGETHER = STORES ? 1 : 32;
static_assert(OP >= MULTIPLY_ADD && OP <= CLOCK, "one of the instructions above");

__constant__ int constants[LINKS] = {4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 0};
__shared__ int shared[LINKS];

struct State {
    float real, real_seed;
    int whole, whole_seed;
    long long wide, wide_seed;
    unsigned near;              // an address in shared or local memory
    unsigned long long far;     // one in global memory
};

__device__ __forceinline__ void step(State& s) {
    if (OP == MULTIPLY_ADD)
        asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(s.real) : "f"(s.real_seed));
    if (OP == ADD)  // two: additions in a row are joined
        asm volatile("add.s32 %0, %0, %1;\n xor.b32 %0, %0, %1;" : "+r"(s.whole) : "r"(s.whole_seed));
    if (OP == MULTIPLY_64) asm volatile("mul.lo.s64 %0, %0, %1;" : "+l"(s.wide) : "l"(s.wide_seed));
    if (OP == MULTIPLY_ADD_INT)
        asm volatile("mad.lo.s32 %0, %0, %1, %1;" : "+r"(s.whole) : "r"(s.whole_seed));
    if (OP == SHARED) asm volatile("ld.shared.u32 %0, [%0];" : "+r"(s.near)::"memory");
    if (OP == LOCAL) asm volatile("ld.local.u32 %0, [%0];" : "+r"(s.near)::"memory");
    if (STORES)  // of those to one address all but the last are dropped
#pragma unroll
        for (int i = 0; i < LINKS; ++i) {
            if (OP == STORE_SHARED)
                asm volatile("st.volatile.shared.f32 [%0], %1;" ::"r"(s.near + 4 * i), "f"(s.real) : "memory");
            if (OP == STORE_LOCAL)
                asm volatile("st.local.f32 [%0], %1;" ::"r"(s.near + 4 * i), "f"(s.real) : "memory");
        }
    if (OP == CONSTANT)
        s.whole = *reinterpret_cast<const int*>(reinterpret_cast<const char*>(constants) + s.whole);
    if (OP == FIRST_CACHE) asm volatile("ld.global.ca.u64 %0, [%0];" : "+l"(s.far)::"memory");
    if (OP == SECOND_CACHE) asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(s.far)::"memory");
    if (OP == BARRIER) __syncthreads();
    if (OP == CLOCK) s.wide += clock64();
}

extern "C" __global__ void instruction_latency(int* __restrict__ out,
                                               long long* __restrict__ clocks,
                                               unsigned long long* __restrict__ round, int seed) {
    unsigned local[LINKS];
    State s = {float(seed), 1.0f / seed, int(threadIdx.x) % LINKS * 4, seed, int(threadIdx.x), seed,
               0, 0};
    const unsigned first_shared = unsigned(__cvta_generic_to_shared(shared));
    const unsigned first_local = unsigned(__cvta_generic_to_local(local));
    for (int i = 0; i < LINKS; ++i) {
        local[i] = first_local + 4 * ((i + seed) % LINKS);
        if (threadIdx.x == 0) {
            shared[i] = int(first_shared + 4 * ((i + seed) % LINKS));
            round[i] = reinterpret_cast<unsigned long long>(round + (i + seed) % LINKS);
        }
    }
    __syncthreads();
    s.near = OP == LOCAL || OP == STORE_LOCAL ? first_local : first_shared;
    s.far = reinterpret_cast<unsigned long long>(round);
    for (int i = 0; i < LINKS; ++i) step(s);   // what a cache holds is there from now on
    const long long begin = clock64();
#pragma unroll TOGETHER
    for (int i = 0; i < STEPS; ++i) step(s);
    const long long end = clock64();
    const unsigned long long left = s.far + s.wide + s.whole + s.near;
    out[threadIdx.x] = int(left ^ left >> 32) + int(s.real) + int(local[seed % LINKS]);
    if (threadIdx.x == 0) *clocks = end - begin;
}
