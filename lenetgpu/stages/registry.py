"""Variants: how they are registered, named and found.

A variant is one algorithm for one kind of stage on one kind of device. Its function writes a
pre-allocated output and returns nothing; what the CLI, the tests and the tables need to know
about it is data in its registration.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.network import CLASSIFIER, CONV_POOL, FEATURES

if TYPE_CHECKING:
    from lenetgpu.gpu.device import Gpu
    from lenetgpu.gpu.machines import Machine
    from lenetgpu.gpu.nvrtc import Kernel

KINDS = ("conv", "pool", "fc", "argmax")
SPAN_KINDS = (CONV_POOL, FEATURES, CLASSIFIER)
SUPPORT_KINDS = ("scale", "relayout")
WEIGHTED = ("conv", "fc", *SPAN_KINDS)


@dataclass(frozen=True)
class Needs:
    """The device a variant runs on: "cpu", or "cuda" with a least compute capability (75 = 7.5).

    `exact` means that capability and no later one: instructions of one architecture only.
    """

    device: str
    compute_capability: int = 0
    exact: bool = False

    def met_by(self, gpu: Gpu) -> bool:
        """Whether `gpu` will do."""
        if self.exact:
            return gpu.compute_capability == self.compute_capability
        return gpu.compute_capability >= self.compute_capability

    def __str__(self) -> str:
        if self.device == "cpu":
            return "cpu"
        only = " only" if self.exact else ""
        return f"cuda {self.compute_capability // 10}.{self.compute_capability % 10}{only}"


def cpu() -> Needs:
    """Runs anywhere."""
    return Needs("cpu")


def cuda(compute_capability: int = 75) -> Needs:
    """Runs on an NVIDIA GPU of at least this compute capability."""
    return Needs("cuda", compute_capability)


def hopper() -> Needs:
    """Runs on Hopper (compute capability 9.0) and nothing else: wgmma, setmaxnreg."""
    return Needs("cuda", 90, exact=True)


Kernels = Callable[[Any, int], "tuple[Kernel, ...]"]
Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class Variant:
    """One algorithm for one kind of stage; its fields are `variant`'s keywords.

    `run` computes it, and its docstring's first line is the summary. `reads` and `writes` list the
    layouts it takes and makes, preferred first; the problem it is launched with names the pair in
    use. `also` are other full names that it answers to, `default` marks the variant that its
    family's name alone means.

    - `prepare(w, problem, batch)` turns a float32 weight array (of a span: the tuple of them) into
      what `run` receives, and may allocate workspace for up to `batch` images.
    - `kernels(problem, batch)` lists every CUDA kernel that a run of 1 to `batch` images may launch
      after `prepare(w, problem, batch)`; `of_shape` makes it of a function of the problem alone.
    - `supports(problem)` is None, or a sentence saying why not.
    - `explain(problem, batch, machine)` gives (what, found) rows on how it divides that work on a
      `lenetgpu.gpu.machines.Machine`: bytes, reuse, idle threads.
    - `local_memory` declares that its kernels use per-thread local memory on purpose, `raw_images`
      that it takes images as they arrive (uint8 or float32) and needs no input step.
    """

    kind: str
    family: str
    name: str
    run: Callable[..., None]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    needs: Needs
    precision: str = "fp32"
    paper: str = ""
    also: tuple[str, ...] = ()
    default: bool = False
    prepare: Callable[[Any, Any, int], Any] | None = None
    kernels: Kernels | None = None
    supports: Callable[[Any], str | None] | None = None
    explain: Callable[[Any, int, Machine], Rows] | None = None
    local_memory: bool = False
    raw_images: bool = False

    @property
    def full_name(self) -> str:
        """`family.name`."""
        return f"{self.family}.{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """The full name and the other full names it answers to."""
        return (self.full_name, *self.also)

    @property
    def summary(self) -> str:
        """First line of its docstring."""
        return (self.run.__doc__ or "").strip().splitlines()[0]

    def refusal(self, problem: Any) -> str | None:
        """None where it can solve `problem`, else a sentence saying what it supports."""
        return self.supports(problem) if self.supports is not None else None

    def laid_out(self, problem: Any) -> Any:
        """`problem` in the first of its layouts that it does not refuse, or the last refusal."""
        refusal: str | None = None
        for reads, writes in product(self.reads, self.writes):
            laid_out = replace(problem, reads=reads, writes=writes)
            refusal = self.refusal(laid_out)
            if refusal is None:
                return laid_out
        return refusal

    def launch(self, x: Any, w: Any, y: Any, problem: Any) -> None:
        """Compute `problem`: input `x`, prepared weights `w` (None without), output `y`."""
        if self.kind in WEIGHTED or self.prepare is not None:
            self.run(x, w, y, problem)
        else:
            self.run(x, y, problem)


class TakenError(ValueError):
    """A name that another variant of its kind goes by."""


REGISTRY: dict[tuple[str, str], Variant] = {}


def _tuple(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def make_variant(run: Callable[..., None], **fields: Any) -> Variant:
    """`run` as variant `family.<function name>`, not registered; `fields` are Variant's.

    A layout or another name may stand alone, without a tuple around it.
    """
    for name in ("reads", "writes", "also"):
        fields[name] = _tuple(fields.get(name, ()))
    return Variant(name=run.__name__.rstrip("_"), run=run, **fields)


def of_shape(make: Callable[[Any], tuple[Kernel, ...]]) -> Kernels:
    """`Variant.kernels` of a function of the problem alone: any batch launches the same."""
    return lambda problem, batch: make(problem)


def variant(**fields: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the decorated function as a variant; `fields` are Variant's."""

    def register(run: Callable[..., None]) -> Callable[..., None]:
        made = make_variant(run, **fields)
        for name in made.names:
            if (made.kind, name) in REGISTRY:
                raise TakenError(f"{made.kind} variant {name} is registered twice")
            REGISTRY[made.kind, name] = made
        return run

    return register


def import_all(package: str, folders: Iterable[str], first: Iterable[str] = ()) -> None:
    """Import every module of `package`: a new file registers its variants by being there.

    The modules of `first` come first, naive to fast: that is the order of `variants`, in which
    what nobody ranked comes last.
    """
    found = [module.name for module in pkgutil.iter_modules(list(folders))]
    for name in dict.fromkeys((*first, *found)):
        importlib.import_module(f"{package}.{name}")


def variants(kind: str | None = None, device: str | None = None) -> list[Variant]:
    """Registered variants by kind, then registration order; of one kind and device where given."""
    order = (*KINDS, *SPAN_KINDS, *SUPPORT_KINDS)
    found = []
    for (_, name), candidate in REGISTRY.items():
        if name != candidate.full_name:
            continue
        if kind in (None, candidate.kind) and device in (None, candidate.needs.device):
            found.append(candidate)
    return sorted(found, key=lambda candidate: order.index(candidate.kind))


def families(kind: str, device: str) -> dict[str, list[Variant]]:
    """Family name to its variants, aliases included, for one kind and device."""
    found: dict[str, list[Variant]] = {}
    for candidate in variants(kind, device):
        for name in candidate.names:
            members = found.setdefault(name.split(".")[0], [])
            if candidate not in members:
                members.append(candidate)
    return found


def choices(kind: str, device: str) -> list[str]:
    """Every name `find` accepts for a stage of `kind` on `device`, families first."""
    names = list(families(kind, device))
    if device != "cpu" and "serial" not in names:
        names.append("serial")
    for candidate in variants(kind, device):
        names.extend(candidate.names)
    return names


def find_span(kind: str, name: str, device: str) -> Variant | None:
    """The span variant called `name` (full name or family, now or before) on `device`, or None."""
    family, _, rest = name.partition(".")
    members = families(kind, device).get(family, [])
    return next((v for v in members if not rest or name in v.names), None)


def find(kind: str, name: str, device: str, stage: str | None = None) -> Variant:
    """The variant called `name`: a full name, or a family's name for its default variant.

    On a GPU, `serial` and any CPU variant's full name mean the CPU variant, run with copies.
    Raises LenetError with the valid choices where there is none.
    """
    exact = REGISTRY.get((kind, name))
    if exact is not None and exact.needs.device in (device, "cpu"):
        return exact
    members = families(kind, device).get(name)
    if members is None and name == "serial":
        members = families(kind, "cpu").get(name)
    if members:
        return next((member for member in members if member.default), members[0])
    where = f"stage {stage}" if stage else f"a {kind} stage"
    if exact is not None:
        raise LenetError(
            f"variant {name} of {where} needs a GPU; on this device choose from: "
            f"{', '.join(choices(kind, device))}"
        )
    raise LenetError(
        f"{where} has no variant {name!r} on {device}; choose from: "
        f"{', '.join(choices(kind, device))}"
    )
