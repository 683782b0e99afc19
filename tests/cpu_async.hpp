// Replaces gpu/ptx/async.cuh: copies complete immediately, as early as permitted.
namespace ptx {
inline void copy4_or_zero(float* to, const float* from, bool there) { *to = there ? *from : 0; }
inline void copy_commit() {}
template <int> void copy_wait() {}
}
