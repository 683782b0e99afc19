"""The whole network on Hopper's tensor cores (sm_90a)."""

from lenetgpu.network import CLASSIFIER, FEATURES
from lenetgpu.stages.registry import offer

_FAMILIES = {
    "fp16_features": "fused wgmma_fp16",
    "fp16_classifier": "fused wgmma_fp16",
    "fp16x3_classifier": "split wgmma_fp16x3",
    "fp16x3_features": "split wgmma_fp16x3",
    "int8_features": "int8 wgmma_int8",
    "fp16_pack": "",
    "int8_pack": "",
}
offer(__name__, __path__, (FEATURES, CLASSIFIER), _FAMILIES)
