"""Completeness of the registry, the CLI's choices, the tables and the tests."""

import pytest
from terminal import run

from lenetgpu.check.judge import TOLERANCE
from lenetgpu.cli.options import STAGES as OPTION_STAGES
from lenetgpu.errors import LenetError
from lenetgpu.lab.listing import variant_rows
from lenetgpu.layouts import MAP_LAYOUTS, PRIVATE
from lenetgpu.network import CLASSIFIER, FEATURES, STAGE_NAMES
from lenetgpu.plan import NAMED, PRECISIONS, resolve
from lenetgpu.stages import families, find, variants
from lenetgpu.stages.registry import KINDS, SUPPORT_KINDS, cpu, make_variant, variant


@pytest.mark.parametrize("v", variants(), ids=lambda v: f"{v.kind}-{v.full_name}")
def test_registrations_are_complete(v):
    assert v.summary.endswith(".")
    assert v.precision in PRECISIONS
    assert v.precision in TOLERANCE
    assert set(v.reads) | set(v.writes) <= {*MAP_LAYOUTS, *PRIVATE, "NC", "N"}
    assert v.needs.device in ("cpu", "cuda")
    if v.needs.device == "cuda":
        assert v.kernels is not None


def test_variants_are_listed_and_stages_have_options():
    listed = {(row["kind"], row["variant"]) for row in variant_rows()}
    assert listed == {(v.kind, v.full_name) for v in variants() if v.kind not in SUPPORT_KINDS}
    assert OPTION_STAGES == STAGE_NAMES
    printed = run("variants").output
    for _, name in listed:
        assert name in printed


def test_each_family_has_one_default_per_device():
    for kind in KINDS:
        for device in ("cpu", "cuda"):
            for name, members in families(kind, device).items():
                assert sum(member.default for member in members) <= 1, name
                assert find(kind, name, device) in members


def test_fused_families_have_both_kernels_and_a_plan():
    without = ("wgmma_int8", "wgmma_sparse_int8", "wgmma_winograd_fp16")
    borrowed = dict.fromkeys(without, "wgmma_fp16") | {"mma_winograd_fp16": "mma_fp16"}
    borrowed["wgmma_winograd_fp16x3"] = "wgmma_fp16x3"
    planned = set()
    for name in (name for name, devices in NAMED.items() if "cuda" in devices):
        first, *others = resolve(name, "cuda").stages
        if first.variant.kind == FEATURES:
            (last,) = others
            family = first.variant.family
            assert last.variant.kind == CLASSIFIER
            assert last.variant.family == borrowed.get(family, family)
            planned.add(family)
    assert planned == {v.family for v in variants(FEATURES, "cuda")}


def test_invalid_family_is_refused_with_the_choices():
    with pytest.raises(LenetError, match=r"stage argmax has no variant 'fft' on cuda.*thread"):
        find("argmax", "fft", "cuda", "argmax")
    with pytest.raises(LenetError, match=r"direct.basic of stage conv1 requires a GPU"):
        find("conv", "direct.basic", "cpu", "conv1")


def test_duplicate_registration_raises():
    with pytest.raises(ValueError, match="registered twice"):

        @variant(kind="fc", family="serial", reads="NC", writes="NC", needs=cpu())
        def loops(x, w, y, problem):
            """A name already in use."""


def test_takes_is_an_alias_of_options():
    def mine(x, w, y, problem):
        """A convolution."""

    made = make_variant(mine, kind="conv", family="x", takes="bias relu")
    assert made.options == {"bias", "relu"}
