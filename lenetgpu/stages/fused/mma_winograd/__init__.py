"""The features on mma.sync (sm_80 and later), Winograd transforms in front of conv2."""

from lenetgpu.network import FEATURES
from lenetgpu.stages.registry import offer

offer(__name__, __path__, (FEATURES,), {"fp16_features": "mma_winograd_fp16"})
