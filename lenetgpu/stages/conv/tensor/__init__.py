"""Any convolution at fp32 accuracy on the tensor cores of every GPU from sm_80 on."""
