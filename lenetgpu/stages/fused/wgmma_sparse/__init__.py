"""The network on Hopper's tensor cores (sm_90a), conv2's filters 2:4 sparse."""

from lenetgpu.network import FEATURES
from lenetgpu.stages.registry import offer

_FAMILIES = {"int8_sparse": "wgmma_sparse_int8", "pack": "", "prune": ""}
offer(__name__, __path__, (FEATURES,), _FAMILIES)
