// What stands between the kernels of two sections in a profile: a launch that does nothing.
// One thread a block; the grid says which section begins, as many blocks as its number from 1 on.

#ifdef ENTRY_section_begins
extern "C" __global__ void section_begins() {}
#endif
