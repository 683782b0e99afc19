// Included after the persistent kernel: runs one launch of it on this CPU.
extern "C" bool run(unsigned char* host, const float* weights, unsigned last, unsigned life,
                    unsigned long long idle, unsigned most, unsigned seed) {
    return cpu::run(BLOCKS, THREADS, SHARED_BYTES, seed,
                    [=] { persistent(host, weights, last, life, idle, most); });
}
