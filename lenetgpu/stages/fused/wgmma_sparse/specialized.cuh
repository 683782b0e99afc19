// Body of the warp-specialized kernel: PRODUCERS warpgroups do conv1, two images a round, to maps
// of their own, two buffers each; the consumer multiplies, a round after the other, and takes the
// means of one under the products of the next. conv2's filters are its registers.
#pragma once
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/barrier.cuh"
#include "gpu/ptx/cluster.cuh"
#include "gpu/ptx/registers.cuh"
#include "stages/fused/wgmma/conv2.cuh"

constexpr int PRODUCERS = GROUPS - 1, BUFFERS = 2, MAP_STAGES = PRODUCERS * BUFFERS;
constexpr int CONSUMER_REGS = 240, PRODUCER_REGS = 88;  // registers of a thread
static_assert(PRODUCERS * PRODUCER_REGS + CONSUMER_REGS <= 512, "registers fit");

// Where things lie in a block's shared memory; `full` and `empty` are barriers of each stage.
template <int MAP_BYTES>
struct Layout {
    static constexpr int MAPS_AT = FILTER1_BYTES, IMAGES_AT = MAPS_AT + MAP_STAGES * MAP_BYTES;
    static constexpr int INTAKE_AT = IMAGES_AT + PRODUCERS * STAGED_BYTES;
    static constexpr int BARRIERS_AT = INTAKE_AT + PRODUCERS * Intake::BYTES;
    static_assert(BARRIERS_AT + 8 * (2 * MAP_STAGES + 1) == SHARED_BYTES, "the launcher's layout differs");
    static_assert(PRODUCERS * STAGED_BYTES >= MAP_BYTES, "what the corner reads beyond");
    u32 base;

    __device__ __forceinline__ u32 maps(int stage) const { return base + MAPS_AT + stage * MAP_BYTES; }
    __device__ __forceinline__ u32 loaded() const { return base + BARRIERS_AT; }
    __device__ __forceinline__ u32 full(int stage) const { return loaded() + 8 + 8 * stage; }
    __device__ __forceinline__ u32 empty(int stage) const { return full(MAP_STAGES) + 8 * stage; }
};

__device__ __forceinline__ Share share_of(int producer, int n) {
    return Share(producer * int(gridDim.x) + int(blockIdx.x), PRODUCERS * int(gridDim.x), n);
}

// As convolve1 with one tile's sums: other warps fill what it waits for.
template <typename Pool>
__device__ __forceinline__ void convolve1_alone(u32 filters, const u32 (&pair)[4], Pool pool) {
    const u64 b = ptx::operand(filters, 64 * VEC_BYTES, 8 * VEC_BYTES);
    uint4 a[2][2];
    const auto load = [&](int at) {
        const int from = at / 3 * 4 * ROW_BYTES + at % 3 * 16;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u32 low = pair[2 * i] + from, high = pair[2 * i + 1] + from;
            a[at % 2][i] = {ptx::load_shared(low), ptx::load_shared(low + ROW_BYTES),
                            ptx::load_shared(high), ptx::load_shared(high + ROW_BYTES)};
        }
    };
    load(0);
#pragma unroll
    for (int at = 0; at < TILES; ++at) {
        float d[32];
        ptx::wgmma_fence();
        ptx::wgmma<false>(d, a[at % 2][0], b);
        ptx::wgmma<true>(d, a[at % 2][1], b + STEP1_BYTES / 16);
        ptx::wgmma_commit();
        if (at + 1 < TILES) load(at + 1);
        ptx::wgmma_wait<0>();
        ptx::settle(d);
        pool(d, at);
    }
}

// Images to maps, by producer `group`.
template <typename Kind, typename Shared>
__device__ __forceinline__ void produce(const Images& images, const Shared& shared,
                                        unsigned char* memory, int group, int n) {
    const int tid = threadIdx.x % WARPGROUP, lane = threadIdx.x % 32;
    const int warp = __shfl_sync(~0u, tid / 32, 0);
    const u32 staged = shared.base + Shared::IMAGES_AT + group * STAGED_BYTES;
    const Offsets offsets = offsets_of(staged, warp, lane, Kind::Conv2::PAIR_ORDER);
    const u32 vec = offsets.vec + Kind::lane_offset(lane);
    const Share share = share_of(group, n);
    int first = share.first;
    Intake intake(images, memory + Shared::INTAKE_AT + group * Intake::BYTES, share, n, tid);
    intake.fetch(first, 0);
    intake.stage(staged, first, 0);
    intake.fetch(first + share.stride, 1);
    for (u32 round = 0; first < share.end; ++round, first += share.stride) {
        const int stage = group * BUFFERS + int(round % BUFFERS);
        ptx::sync(1 + group, WARPGROUP);
        if (round == 0) ptx::barrier_wait(shared.loaded(), 0);
        if (round >= BUFFERS) ptx::barrier_wait(shared.empty(stage), (round / BUFFERS - 1) & 1);
        const u32 vecs = shared.maps(stage) + vec;
        convolve1_alone(shared.base, offsets.pair, [&](const float (&d)[32], int at) {
            Kind::store(vecs + tile_vec(at), d);
        });
        ptx::async_fence();
        __syncwarp();
        if (lane == 0) ptx::barrier_arrive(shared.full(stage));
        ptx::sync(1 + group, WARPGROUP);  // the pixels have been read
        intake.stage(staged, first + share.stride, round + 1);
        intake.fetch(first + 2 * share.stride, round + 2);
    }
}

// Features of the images from `first` on, if there are any, from conv2's sums.
template <typename Kind, typename Sums>
__device__ __forceinline__ void means(const Kind& kind, const Sums& d, uint4* out, int first,
                                      int tid) {
#pragma unroll
    for (int i = 0; i < IMAGES; ++i) {
        u32 mean[4];
#pragma unroll
        for (int y = 0; y < 4; ++y) {
            const int top = 4 * (2 * y * IMAGES + i), bottom = top + 4 * IMAGES;
            mean[y] = kind.mean(d + top, d + bottom);
        }
        if (first >= 0) out[feature_vec(first + i, tid)] = {mean[0], mean[1], mean[2], mean[3]};
    }
}

// Maps to features: turn `k` takes round k / PRODUCERS of producer k % PRODUCERS. An earlier
// producer has as many rounds as a later one, or one more.
template <typename Kind, typename Shared>
__device__ __forceinline__ void consume(const Kind& kind, const typename Kind::Conv2& conv2,
                                        const Shared& shared, uint4* out, int n) {
    const int tid = threadIdx.x % WARPGROUP, lane = threadIdx.x % 32;
    using Sums = typename Kind::Conv2::Sum[32 * IMAGES];
    struct Turn {
        int first, end, stage;
        u32 parity;
    };
    const auto turn = [&](int k) {
        const int producer = k % PRODUCERS, round = k / PRODUCERS;
        const Share share = share_of(producer, n);
        return Turn{share.first + round * share.stride, share.end,
                    producer * BUFFERS + round % BUFFERS, u32(round / BUFFERS & 1)};
    };
    // The products of `t` to `d`, and under them the means of `before` from `last`.
    const auto take = [&](const Turn& t, Sums& d, int before, const Sums& last) {
        ptx::barrier_wait(shared.full(t.stage), t.parity);
        conv2.multiply(d, shared.maps(t.stage));
        means(kind, last, out, before, tid);
        ptx::wgmma_wait<0>();
        ptx::settle(d);
        if (lane == 0) ptx::barrier_arrive(shared.empty(t.stage));
    };
    Sums even, odd = {};
    Turn now = turn(0);
    int before = -IMAGES;
    for (int k = 1; now.first < now.end; k += 2) {
        take(now, even, before, odd);
        const Turn second = turn(k);
        if (second.first >= second.end) return means(kind, even, out, now.first, tid);
        take(second, odd, now.first, even);
        before = second.first;
        now = turn(k + 1);
    }
    means(kind, odd, out, before, tid);
}

// As `carry`; filters2: as Kind's `Conv2` reads them.
template <typename Kind, typename Load>
__device__ __forceinline__ void carry_specialized(Images images, const unsigned char* filters1,
                                               const unsigned char* filters2, uint4* out, int n,
                                               Load load) {
    using Conv2 = typename Kind::Conv2;
    using Shared = Layout<Conv2::MAP_BYTES>;
    extern __shared__ __align__(128) unsigned char memory[];
    const Shared shared{ptx::shared(memory)};
    const int group = __shfl_sync(~0u, int(threadIdx.x) / WARPGROUP, 0);
    const int tid = threadIdx.x % WARPGROUP;

    ptx::start_next_grid();
    if (threadIdx.x == 0) {
        ptx::barrier_init(shared.loaded(), 1);
        for (int stage = 0; stage < MAP_STAGES; ++stage) {
            ptx::barrier_init(shared.full(stage), WARPGROUP / 32);
            ptx::barrier_init(shared.empty(stage), WARPGROUP / 32);
        }
        for (int g = 0; g < PRODUCERS; ++g)
            Intake::begin(shared.base + Shared::INTAKE_AT + g * Intake::BYTES);
        ptx::barrier_init_fence();
        const Share share = share_of(0, n);
        if (share.first < share.end) {
            ptx::barrier_expect(shared.loaded(), FILTER1_BYTES);
            ptx::bulk_load(shared.base, filters1, FILTER1_BYTES, shared.loaded());
        }
    }
    __syncthreads();
    if (group == PRODUCERS) {
        ptx::more_registers<CONSUMER_REGS>();
        const Conv2 conv2(filters2, tid);
        const Kind kind = load(16 * (tid / 32) + tid % 32 / 4);
        ptx::wait_for_grid();
        consume(kind, conv2, shared, out, n);
    } else {
        ptx::fewer_registers<PRODUCER_REGS>();
        ptx::wait_for_grid();
        produce<Kind>(images, shared, memory, group, n);
        const int groups = PRODUCERS * int(gridDim.x);
        const int own = group * int(gridDim.x) + int(blockIdx.x);
        const int rest = (n + IMAGES - 1) / IMAGES * IMAGES + own * IMAGES;
        for (int i = 0; i < IMAGES; ++i) clear_rest(out, rest + i, groups * IMAGES, n, tid);
    }
}
