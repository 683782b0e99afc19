"""Variants that cover a span of consecutive stages."""

from lenetgpu.stages.registry import SPAN_KINDS, offer

_FAMILIES = {
    "block": "block",
    "cuda_cores.classifier": "cuda_cores_fp32 plain",
    "cuda_cores.features": "cuda_cores_fp32 plain",
    "mma.classifier": "mma mma_fp16 mma_fp16x3 mma_split",
    "mma.features": "mma mma_fp16 mma_fp16x3 mma_split",
    "mma_winograd.fp16_features": "mma_winograd_fp16",
    "wgmma.fp16_features": "fused wgmma_fp16",
    "wgmma.fp16_classifier": "fused wgmma_fp16",
    "wgmma.fp16x3_classifier": "split wgmma_fp16x3",
    "wgmma.fp16x3_features": "split wgmma_fp16x3",
    "wgmma.int8_features": "int8 wgmma_int8",
    "wgmma_sparse.int8_sparse": "wgmma_sparse_int8",
    "wgmma_winograd.fp16_features": "wgmma_winograd_roles_fp16 wgmma_winograd_fp16",
    "wgmma_winograd.fp16x3_features": "wgmma_winograd_fp16x3",
    "winograd.features": "winograd",
    "persistent": "",
    "split": "",
}
offer(__name__, __path__, SPAN_KINDS, _FAMILIES)
