"""Any convolution on the tensor cores of every GPU from sm_80 on, at fp32 accuracy."""
