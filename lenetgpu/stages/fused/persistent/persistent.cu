// One image from host memory to its label without a launch: a cluster of BLOCKS blocks that stays on
// the GPU, weights in registers and shared memory, and watches a mailbox in the host's memory.
// Warp 8 of block 0 reads the mailbox over and over, WATCHES reads under way, hands an image round,
// and in the end adds fc1's parts, does fc2 and answers. Warps 0 to 7 of every block: three of
// pool1's rows in some of its maps, a thread eight sums of a row, sent to the blocks that need them;
// two rows of conv2 in 16 maps a pass, a warp one row of four maps, a lane an input map, 8 x 4 sums
// in registers, added over the lanes; a row of pool2; the part of fc1 that these features have.
// Pools are sums: their factors and all scales are the host's.
// After `idle` ns without an image, or `most` images (0: any number), it writes `life` where the host
// looks, and ends. sm_90a, fp32.
#include "gpu/ptx/barrier.cuh"
#include "gpu/ptx/global.cuh"
#include "gpu/ptx/host.cuh"
#include "gpu/ptx/registers.cuh"
#include "stages/fused/persistent/layers.cuh"

static_assert(sizeof(Shared) == SHARED_BYTES, "the launcher's layout differs");
static_assert(THREADS == WORKERS + 4 * WARP, "two warpgroups that compute, one warp that watches");
static_assert(2 * WORK_REGISTERS + WATCH_REGISTERS <= 3 * 168, "what three warpgroups start with");

// The weights stay in a thread's registers, those of conv2 where there is one pass.
__device__ __forceinline__ void compute(Shared& s, const float* weights, u32 rank, int thread) {
    const int warp = thread / WARP, lane = thread % WARP, quad = warp % QUADS;
    const int band = int(rank) / TEAM, member = int(rank) % TEAM;
    const float4* from2 = reinterpret_cast<const float4*>(weights + CONV2_AT) +
                          (member * PASSES * QUADS + quad) * (FILTER * MAPS1) + lane;
    const float4* from_fc1 = reinterpret_cast<const float4*>(weights + FC1_AT) +
                             (band * 4 + member * PASSES) * (FEATURES * WORKERS) + thread;
    float4 w2[FILTER], w1[PASSES][FEATURES];
#pragma unroll
    for (int t = 0; t < FILTER; ++t) w2[t] = from2[t * MAPS1];
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass)
#pragma unroll
        for (int i = 0; i < FEATURES; ++i)
            w1[pass][i] = from_fc1[(pass * FEATURES + i) * WORKERS];

    u32 float_parity = 0;
#pragma unroll 1
    for (u32 parity = 0;; parity ^= 1) {
        ptx::barrier_wait_cluster(ptx::shared(&s.mailed), parity);
        const u32 tag = s.mail[UNIT - 1];
        if (tag == 0) break;
        if (thread == 0) {
            ptx::barrier_expect(ptx::shared(&s.mailed), MAIL_BYTES);
            ptx::barrier_expect(ptx::shared(&s.mapped), MAP_BYTES);
            if (tag % 2) ptx::barrier_expect(ptx::shared(&s.floats), FLOAT_BYTES);
        }
        if (tag % 2) {
            ptx::barrier_wait_cluster(ptx::shared(&s.floats), float_parity);
            float_parity ^= 1;
        } else if (thread < SEEN * SIDE / 4) {
            const u32 four = s.mail[thread / (UNIT - 1) * UNIT + thread % (UNIT - 1)];
            reinterpret_cast<float4*>(s.pixels)[thread] =
                make_float4(four & 255, four >> 8 & 255, four >> 16 & 255, four >> 24);
        }
        ptx::sync(1, WORKERS);
        conv1(s, band, member, thread);
        ptx::barrier_wait_cluster(ptx::shared(&s.mapped), parity);
        if constexpr (PASSES == 1) {
            conv2(s, w2, 0, warp, lane);
        } else {
#pragma unroll 1
            for (int pass = 0; pass < PASSES; ++pass) {
#pragma unroll
                for (int t = 0; t < FILTER; ++t)
                    w2[t] = s.filters2[((pass * QUADS + quad) * FILTER + t) * MAPS1 + lane];
                conv2(s, w2, pass, warp, lane);
            }
        }
        ptx::sync(1, WORKERS);
        fc1(s, w1, rank, warp, lane);
    }
}

// The image as a warp reads it: 16 bytes a lane and the rest; rows end in odd lanes.
struct Mail {
    uint4 first, rest;

    __device__ __forceinline__ void read(const uint4* box, int lane) {
        first = ptx::load_host(box + lane);
        if (lane < PIECES - WARP) rest = ptx::load_host(box + WARP + lane);
    }
    // Whether all rows are of one image after `last`; `tag` becomes the first row's.
    __device__ __forceinline__ bool news(u32 last, int lane, u32& tag) const {
        tag = __shfl_sync(~0u, first.w, 1);
        const bool whole = lane % 2 == 0 ||
                           (first.w == tag && (lane >= PIECES - WARP || rest.w == tag));
        return __all_sync(~0u, whole) && tag != 0 && int(tag - last) > 0;
    }
};

// The rows that each block's share of conv1 needs.
__device__ __forceinline__ void deliver(Shared& s, const Mail& mail, int lane) {
    s.image[lane] = mail.first;
    if (lane < PIECES - WARP) s.image[WARP + lane] = mail.rest;
    __syncwarp();
#pragma unroll 5
    for (int i = lane; i < BLOCKS * SEEN_PIECES; i += WARP) {
        const int block = i / SEEN_PIECES, piece = i % SEEN_PIECES;
        ptx::store_cluster16(ptx::in_block(ptx::shared(s.mail) + piece * 16, block),
                             s.image[block / TEAM * BAND_PIECES + piece],
                             ptx::in_block(ptx::shared(&s.mailed), block));
    }
    __syncwarp();
}

__device__ __forceinline__ void deliver_floats(Shared& s, const uint4* from, int lane) {
    constexpr int ROW = SIDE / 4;
    ptx::fence_host();
#pragma unroll 1
    for (int i = lane; i < SIDE * ROW; i += WARP) {
        const uint4 four = ptx::load_host(from + i);
        for (int block = 0; block < BLOCKS; ++block) {
            const int piece = i - block / TEAM * 2 * ROWS1 * ROW;
            if (piece >= 0 && piece < SEEN * ROW)
                ptx::store_cluster16(ptx::in_block(ptx::shared(s.pixels) + piece * 16, block), four,
                                     ptx::in_block(ptx::shared(&s.floats), block));
        }
    }
}

// fc1's parts to ten scores and the label, by one warp: 64 bytes for the host, each 16 with the tag.
__device__ __forceinline__ void answer(const Shared& s, const uint4 (&w)[CLASSES], uint4* to,
                                       u32 tag, int lane) {
    float4 h = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) {
        const float4 part = *reinterpret_cast<const float4*>(s.parts[block] + lane * 4);
        h.x += part.x, h.y += part.y, h.z += part.z, h.w += part.w;
    }
    h = make_float4(fmaxf(h.x, 0.0f), fmaxf(h.y, 0.0f), fmaxf(h.z, 0.0f), fmaxf(h.w, 0.0f));
    float score[16] = {};
#pragma unroll
    for (int c = 0; c < CLASSES; ++c)
        score[c] = fmaf(h.x, __uint_as_float(w[c].x), h.y * __uint_as_float(w[c].y)) +
                   fmaf(h.z, __uint_as_float(w[c].z), h.w * __uint_as_float(w[c].w));
    add_over_lanes<WARP / 2>(score, lane);  // lanes 2c and 2c + 1 hold class c's
    const u32 bits = __float_as_uint(score[0] + 0.0f);  // no -0, which would come after 0
    const u32 order = bits >> 31 ? ~bits : bits | 1u << 31;
    const u32 key = lane < 2 * CLASSES ? order : 0;
    const int label = (__ffs(__ballot_sync(~0u, key == __reduce_max_sync(~0u, key))) - 1) / 2;
    uint4 words;
    words.x = __shfl_sync(~0u, bits, 6 * lane);
    words.y = __shfl_sync(~0u, bits, 6 * lane + 2);
    words.z = __shfl_sync(~0u, bits, 6 * lane + 4);
    if (lane == 3) words.y = label;
    words.w = tag;
    if (lane < 4) ptx::store_host(to + lane, words);
}

// Warp 8 of block 0: until `idle` ns have passed without an image, or `most` are answered.
__device__ __forceinline__ void watch(Shared& s, unsigned char* host, const float* weights,
                                      u32 last, u64 idle, u32 most, int lane) {
    const uint4* box = reinterpret_cast<const uint4*>(host + MAIL_AT);
    Mail reads[WATCHES] = {};
    u32 asked = ptx::clocks();
    u64 since = ptx::nanoseconds();
#pragma unroll 1
    for (u32 parity = 0, answered = 0;; parity ^= 1, ++answered) {
        const bool enough = most != 0 && answered == most;
        Mail mail = {};
        u32 tag = 0;
        bool found = false;
#pragma unroll 1
        while (!found && !enough && !__shfl_sync(~0u, ptx::nanoseconds() - since >= idle, 0)) {
#pragma unroll
            for (int i = 0; i < WATCHES; ++i) {
                if (found) continue;
                found = reads[i].news(last, lane, tag);
                if (found) {
                    mail = reads[i];
                } else {
                    while (WATCHES > 1 && ptx::clocks() - asked < APART) {
                    }
                    asked = ptx::clocks();
                    reads[i].read(box, lane);
                }
            }
        }
        deliver(s, mail, lane);  // nothing but zeros: the end
        if (!found) break;
        if (tag % 2) deliver_floats(s, reinterpret_cast<const uint4*>(host + FLOATS_AT), lane);
        uint4 w[CLASSES];  // fetched while the others compute
#pragma unroll
        for (int c = 0; c < CLASSES; ++c)
            w[c] = ptx::load_here(reinterpret_cast<const uint4*>(weights + FC2_AT) + c * WARP +
                                  lane);
        ptx::barrier_wait_cluster(ptx::shared(&s.added), parity);
        if (lane == 0) ptx::barrier_expect(ptx::shared(&s.added), BLOCKS * HIDDEN * 4);
        answer(s, w, reinterpret_cast<uint4*>(host + ANSWER_AT), tag, lane);
        last = tag;
        since = ptx::nanoseconds();
    }
}

// `last`: the tag of the newest image that is not asked for.
extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1)
    persistent(unsigned char* host, const float* __restrict__ weights, u32 last, u32 life, u64 idle,
             u32 most) {
    extern __shared__ float4 memory[];
    Shared& s = *reinterpret_cast<Shared*>(memory);
    const int thread = threadIdx.x;
    const u32 rank = ptx::cluster_rank();
    for (int i = thread; i < OWN1 * FILTER_PITCH; i += THREADS)
        s.filters1[i] = weights[rank % TEAM * (OWN1 * FILTER_PITCH) + i];
    constexpr int HELD = PASSES * QUADS * FILTER * MAPS1;
    if (PASSES > 1)
        for (int i = thread; i < HELD; i += THREADS)
            s.filters2[i] =
                reinterpret_cast<const float4*>(weights + CONV2_AT)[rank % TEAM * HELD + i];
    if (thread == 0) {
        for (u64* bar : {&s.mailed, &s.floats, &s.mapped, &s.added})
            ptx::barrier_init(ptx::shared(bar), 1);
        ptx::barrier_init_fence();
        ptx::barrier_expect(ptx::shared(&s.mailed), MAIL_BYTES);
        ptx::barrier_expect(ptx::shared(&s.added), BLOCKS * HIDDEN * 4);
    }
    ptx::cluster_sync();
    if (thread < WORKERS) {
        ptx::more_registers<WORK_REGISTERS>();
        compute(s, weights, rank, thread);
    } else {
        ptx::fewer_registers<WATCH_REGISTERS>();
        if (rank == 0 && thread < WORKERS + WARP)
            watch(s, host, weights, last, idle, most, thread % WARP);
    }
    __syncwarp();
    ptx::cluster_sync();
    if (rank == 0 && thread == 0)
        ptx::release_host(reinterpret_cast<u32*>(host + ASLEEP_AT), life);
}
