"""What answers single images: the resident kernel once, a recorded pass, or neither."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lenetgpu.errors import LenetError
from lenetgpu.net import one as module
from lenetgpu.net import streaming
from lenetgpu.stages.fused import resident


@pytest.fixture
def ways(monkeypatch):
    """Which of them refuse, by what."""
    refusing = {}

    def made(name):
        def make(*given):
            if name in refusing:
                raise refusing[name]
            return name

        return make

    def check(net, weights):
        assert (net, weights) == ("once", "weights")
        if "check" in refusing:
            raise refusing["check"]

    monkeypatch.setattr(resident, "Once", made("once"))
    monkeypatch.setattr(streaming, "OneImage", made("recorded"))
    monkeypatch.setattr(module, "check_resident", check)
    return refusing


def asked(precision="fp32", dtype="uint8", chosen=True):
    return module.one_image(SimpleNamespace(precision=precision), "weights", dtype, chosen, None)


def test_plans_as_exact_as_fp32_have_the_resident_kernel(ways):
    assert [asked(precision) for precision in ("fp32", "fp16x3")] == ["once", "once"]
    assert [asked(precision) for precision in ("fp16", "int8")] == ["recorded", "recorded"]
    assert asked(dtype="float32") == "recorded"
    assert asked(chosen=False) == "recorded"


@pytest.mark.parametrize("error", [LenetError("not here"), MemoryError()], ids=["said", "memory"])
@pytest.mark.parametrize("refusal", ["once", "check"])
def test_where_it_is_not_to_be_had_or_does_not_fit_the_plan_answers(ways, refusal, error):
    ways[refusal] = error
    assert asked() == "recorded"
    ways["recorded"] = error
    assert asked() is None


def test_what_is_no_refusal_is_raised(ways):
    ways["once"] = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        asked()
