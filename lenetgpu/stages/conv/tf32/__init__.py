"""Any convolution at fp32 accuracy by three products of TF32, in one launch."""
