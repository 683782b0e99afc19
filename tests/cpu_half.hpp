// What kernels say of floats of fewer bits, on a CPU: beside cpu_cuda.hpp.
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }

// fp16's bits of the nearest value, of two as near the even one.
inline unsigned short nearest_half(float value) {
    const unsigned short sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) return 0x7FFF;
    const double size = std::fabs((double)value);
    if (size == 0) return sign;
    if (size >= 65520) return sign | 0x7C00;
    int exponent = 0;
    std::frexp(size, &exponent);  // size lies in [2^(exponent - 1), 2^exponent)
    exponent = std::max(exponent, -13);
    const int units = (int)std::nearbyint(std::ldexp(size, 11 - exponent));
    return sign | (((exponent + 13) << 10) + units);
}
#define asm(...) bits = nearest_half(value)  // the one of gpu/ptx/half.cuh
