"""The network's architecture: seven stages with their shapes, operations and byte counts.

LeNet of the course report (section 2.1): 28x28 images, two 5x5 valid convolutions without bias,
each followed by ReLU and a 2x2 mean, two fully connected layers, argmax. Shapes are per image and
logical, (H, W, C); `reads` and `writes` of a problem name the memory layouts (`lenetgpu.layouts`).
"""

from dataclasses import dataclass
from typing import ClassVar

from lenetgpu.problems import FLOAT_BYTES, Argmax, Conv, ConvPool, Fc, Pool, Relayout, Scale

IMAGE_SHAPE = (28, 28, 1)
PIXEL_SCALE = 255.0
CLASSES = 10
FEATURE_COUNT = 4 * 4 * 64
FEATURE_STAGES = ("conv1", "pool1", "conv2", "pool2")
CLASSIFIER_STAGES = ("fc1", "fc2", "argmax")


@dataclass(frozen=True)
class Features:
    """Span conv1 to pool2; only the classifier of the same family reads the layout `writes`."""

    reads: str = "NHWC"
    writes: str = "F16"
    in_shape: ClassVar = IMAGE_SHAPE
    out_shape: ClassVar = (FEATURE_COUNT,)

    def flop(self, n: int) -> int:
        """Floating-point operations of the four stages, as the plain algorithm counts them."""
        return sum(stage(name).problem.flop(n) for name in FEATURE_STAGES)

    def bytes(self, n: int) -> int:
        """Fewest bytes moved: uint8 pixels and filters read, 2 bytes a feature written."""
        pixels = IMAGE_SHAPE[0] * IMAGE_SHAPE[1] * IMAGE_SHAPE[2]
        filters = 5 * 5 * 32 + 5 * 5 * 32 * 64
        return n * (pixels + 2 * FEATURE_COUNT) + FLOAT_BYTES * filters


@dataclass(frozen=True)
class Classifier:
    """Span fc1, fc2, argmax: features to labels and optional scores."""

    reads: str = "F16"
    writes: str = "N"
    in_shape: ClassVar = (FEATURE_COUNT,)
    out_shape: ClassVar = ()

    def flop(self, n: int) -> int:
        """Floating-point operations of the three stages."""
        return sum(stage(name).problem.flop(n) for name in CLASSIFIER_STAGES)

    def bytes(self, n: int) -> int:
        """Fewest bytes moved: 2 bytes a feature and the weights read, a label written."""
        weights = FEATURE_COUNT * 128 + 128 * CLASSES
        return n * (2 * FEATURE_COUNT + FLOAT_BYTES) + FLOAT_BYTES * weights


Problem = Conv | Pool | Fc | Argmax | ConvPool | Features | Classifier | Scale | Relayout


@dataclass(frozen=True)
class Stage:
    """One of the seven stages; `weight` is the name of its weight tensor, or None."""

    name: str
    kind: str
    problem: Conv | Pool | Fc | Argmax
    weight: str | None = None

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of its weight tensors: none or one."""
        return () if self.weight is None else (self.weight,)


_CONV1, _CONV2 = Conv(28, 28, 1, 32, 5, 5), Conv(12, 12, 32, 64, 5, 5)
STAGES: tuple[Stage, ...] = (
    Stage("conv1", "conv", _CONV1, "conv1"),
    Stage("pool1", "pool", Pool(24, 24, 32)),
    Stage("conv2", "conv", _CONV2, "conv2"),
    Stage("pool2", "pool", Pool(8, 8, 64)),
    Stage("fc1", "fc", Fc(1024, 128, relu=True), "fc1"),
    Stage("fc2", "fc", Fc(128, CLASSES, relu=False), "fc2"),
    Stage("argmax", "argmax", Argmax(CLASSES)),
)
CONV_POOL, FEATURES, CLASSIFIER = "conv_pool", "features", "classifier"


@dataclass(frozen=True)
class Span:
    """Consecutive stages that one variant of `kind` can compute; `weights` names its tensors."""

    stages: tuple[str, ...]
    kind: str
    problem: ConvPool | Features | Classifier
    weights: tuple[str, ...]

    @property
    def name(self) -> str:
        """The stages' names joined by +."""
        return "+".join(self.stages)


_ALL_WEIGHTS = ("conv1", "conv2", "fc1", "fc2")
SPANS: tuple[Span, ...] = (
    Span(FEATURE_STAGES, FEATURES, Features(), _ALL_WEIGHTS),
    Span(CLASSIFIER_STAGES, CLASSIFIER, Classifier(), _ALL_WEIGHTS),
    Span(("conv1", "pool1"), CONV_POOL, ConvPool(_CONV1), ("conv1",)),
    Span(("conv2", "pool2"), CONV_POOL, ConvPool(_CONV2), ("conv2",)),
)
STAGE_NAMES: tuple[str, ...] = tuple(stage.name for stage in STAGES)


def stage(name: str) -> Stage:
    """Return the stage called `name`; raise KeyError if there is none."""
    return {s.name: s for s in STAGES}[name]


def weight_shapes() -> dict[str, tuple[int, ...]]:
    """Dataset name to shape, for the four weight tensors."""
    return {
        s.weight: s.problem.weight_shape
        for s in STAGES
        if s.weight is not None and isinstance(s.problem, Conv | Fc)
    }
