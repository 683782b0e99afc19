"""Variants that cover a span of consecutive stages."""

from lenetgpu.network import CLASSIFIER, CONV_POOL, FEATURES
from lenetgpu.stages.registry import offer

KINDS = (CONV_POOL, FEATURES, CLASSIFIER)
_FAMILIES = {
    "block": "block",
    "cuda_cores": "cuda_cores_fp32 plain",
    "mma": "mma mma_fp16 mma_fp16x3 mma_split",
    "mma_winograd": "mma_winograd_fp16",
    "wgmma": "fused int8 split wgmma_fp16 wgmma_fp16x3 wgmma_int8",
    "wgmma_sparse": "wgmma_sparse_int8",
    "wgmma_winograd": "wgmma_winograd_fp16x3 wgmma_winograd_roles_fp16 wgmma_winograd_fp16",
    "winograd": "winograd",
    "resident": "",
    "split": "",
}
offer(__name__, __path__, KINDS, _FAMILIES)
