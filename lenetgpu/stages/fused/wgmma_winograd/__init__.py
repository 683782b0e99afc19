"""The network on Hopper's tensor cores (sm_90a), Winograd transforms in front of conv2."""

from lenetgpu.network import FEATURES
from lenetgpu.stages.registry import offer

_FAMILIES = {
    "fp16_roles": "wgmma_winograd_roles_fp16 wgmma_winograd_fp16",
    "fp16x3_features": "wgmma_winograd_fp16x3",
    "fp16_pack": "",
}
offer(__name__, __path__, (FEATURES,), _FAMILIES)
