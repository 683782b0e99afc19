"""Variants: how they are registered, named and found.

A variant is one algorithm for one kind of stage on one kind of device. Its function writes a
pre-allocated output and returns nothing; what the CLI, the tests and the tables need to know
about it is data in its registration. Which families a module registers is told beside it
(`offer`), so that a plan is found without importing what it does not run.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from lenetgpu.errors import LenetError, choose
from lenetgpu.network import CLASSIFIER, CONV_POOL, FEATURES
from lenetgpu.stages.needs import Needs as Needs
from lenetgpu.stages.needs import cpu as cpu
from lenetgpu.stages.needs import cuda as cuda
from lenetgpu.stages.needs import hopper as hopper
from lenetgpu.stages.needs import require_known, untaken

if TYPE_CHECKING:
    from lenetgpu.gpu.machines import Machine
    from lenetgpu.gpu.nvrtc import Kernel

KINDS = ("conv", "pool", "fc", "argmax")
SPAN_KINDS = (CONV_POOL, FEATURES, CLASSIFIER)
SUPPORT_KINDS = ("scale", "relayout")
WEIGHTED = ("conv", "fc", *SPAN_KINDS)
Kernels = Callable[[Any, int], "tuple[Kernel, ...]"]
Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class Variant:
    """One algorithm for one kind of stage; its fields are `variant`'s keywords.

    `run` computes it; its docstring's first line is the summary. `reads` and `writes` list the
    layouts it takes and makes, preferred first; the problem it is launched with names the pair in
    use. `also` are other full names of it, `default`: its family's name alone means it.

    - `prepare(w, problem, batch)` turns a float32 weight array (of a span: the tuple of them; of a
      convolution with a bias: filters and bias, as its dtype has them) into what `run` receives,
      and may allocate workspace for up to `batch` images.
    - `kernels(problem, batch)` lists every CUDA kernel that a run of 1 to `batch` images may launch
      after `prepare(w, problem, batch)`; `of_shape` makes it of a function of the problem alone.
    - `takes` names what of a convolution's `wants` it knows of (`lenetgpu.stages.needs`): one that
      wants more is refused, before `supports` is asked: None, or a sentence saying why not.
    - `explain(problem, batch, machine)` gives (what, found) rows on how it divides that work on a
      `lenetgpu.gpu.machines.Machine`: bytes, reuse, idle threads.
    - `local_memory`: its kernels use per-thread local memory on purpose; `raw_images`: it takes
      uint8 or float32 images; `repeats`: two runs on the same images agree to the bit.
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
    takes: frozenset[str] = frozenset()
    supports: Callable[[Any], str | None] | None = None
    explain: Callable[[Any, int, Machine], Rows] | None = None
    local_memory: bool = False
    raw_images: bool = False
    repeats: bool = True

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
        unknown = untaken(problem, self.takes)
        return unknown or (self.supports(problem) if self.supports else None)

    def laid_out(self, problem: Any) -> Any:
        """`problem` in the first of its layouts that it does not refuse, or the last refusal."""
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
_PLAIN = dict.fromkeys(("conv", "pool", "scale"), ("NHWC", "NHWC")) | {
    "fc": ("NC", "NC"),
    "argmax": ("NC", "N"),
    FEATURES: ("NHWC", ()),
    CLASSIFIER: ((), "N"),
}


def _tuple(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def make_variant(run: Callable[..., None], **fields: Any) -> Variant:
    """`run` as variant `family.<function name>`, not registered; `fields` are Variant's.

    A layout or another name may stand alone, without a tuple around it; `takes` is a text of words.
    ValueError where it has others than wants. Without `needs` it runs on a GPU if it has kernels;
    without layouts it has its kind's plain ones.
    """
    fields.setdefault("needs", cuda() if "kernels" in fields else cpu())
    fields.setdefault("raw_images", fields.get("kind") == FEATURES)
    plain = _PLAIN.get(fields.get("kind", ""), ((), ()))
    for name, default in zip(("reads", "writes", "also"), (*plain, ()), strict=True):
        fields[name] = _tuple(fields.get(name, default))
    fields["takes"] = require_known(fields.get("takes", ""))
    return Variant(name=run.__name__.rstrip("_"), run=run, **fields)


def of_shape(make: Callable[[Any], Kernel | tuple[Kernel, ...]]) -> Kernels:
    """`Variant.kernels` of a function of the problem alone, to one kernel or several."""

    def kernels(problem: Any, batch: int) -> tuple[Kernel, ...]:
        made = make(problem)
        return made if isinstance(made, tuple) else (made,)

    return kernels


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


class _Offer(NamedTuple):
    """A module that registers variants when it is imported; `families` None: any."""

    rank: int
    kinds: tuple[str, ...]
    families: frozenset[str] | None


_OFFERS: dict[str, _Offer] = {}
_REFUSED = {
    ("argmax", "fft"): "an FFT is for sums of products, and the largest of K scores is no sum"
}


def refused(kind: str, family: str) -> str | None:
    """The reason why no variant of `kind` can be of `family`; None where one could."""
    return _REFUSED.get((kind, family))


def offer(
    package: str, folders: Iterable[str], kinds: str | tuple[str, ...], families: Mapping[str, str]
) -> None:
    """Tell of the modules of `package`, to be imported when variants of `kinds` are asked for.

    `families` names the families that a module registers, "" for none, in naive to fast order of
    the modules: that is the order of `variants`. A module that it does not name comes last and is
    imported for any: a new file registers its variants by being there. What begins with "lenetgpu."
    is a module outside `package`.
    """
    told = {name.partition(".")[0] for name in families}
    found = [each.name for each in pkgutil.iter_modules(list(folders)) if each.name not in told]
    for name in (*families, *found):
        module = name if name.startswith("lenetgpu.") else f"{package}.{name}"
        members = frozenset(families[name].split()) if name in families else None
        _OFFERS[module] = _Offer(len(_OFFERS), _tuple(kinds), members)


def import_offered(kind: str | None = None, family: str | None = None) -> None:
    """Import the modules that may register variants of `kind` and `family`; None means any."""
    for module, (_, kinds, members) in _OFFERS.items():
        if kind in (None, *kinds) and (None in (family, members) or family in (members or ())):
            importlib.import_module(module)


def _rank(made: Variant) -> tuple[int, int]:
    """Its kind, then where its module stands among those offered; from outside comes last."""
    module = made.run.__module__
    while module and module not in _OFFERS:
        module = module.rpartition(".")[0]
    kinds = (*KINDS, *SPAN_KINDS, *SUPPORT_KINDS)
    return kinds.index(made.kind), _OFFERS[module].rank if module else len(_OFFERS)


def _loaded(kind: str | None, device: str | None) -> list[Variant]:
    """Registered variants, of one kind and device where given, in order."""
    found = [v for (_, name), v in REGISTRY.items() if name == v.full_name]
    found = [v for v in found if kind in (None, v.kind) and device in (None, v.needs.device)]
    return sorted(found, key=_rank)


def variants(kind: str | None = None, device: str | None = None) -> list[Variant]:
    """All variants by kind, then in their modules' order; of one kind and device where given."""
    import_offered(kind)
    return _loaded(kind, device)


def _members(kind: str, family: str, device: str) -> list[Variant]:
    """Variants of `kind` that answer to a name of `family` on `device`."""
    import_offered(kind, family)
    prefix = f"{family}."
    return [v for v in _loaded(kind, device) if any(n.startswith(prefix) for n in v.names)]


def families(kind: str, device: str) -> dict[str, list[Variant]]:
    """Family name to its variants, aliases included, for one kind and device."""
    found: dict[str, list[Variant]] = {}
    for candidate in variants(kind, device):
        for family in dict.fromkeys(name.split(".")[0] for name in candidate.names):
            found.setdefault(family, []).append(candidate)
    return found


def choices(kind: str, device: str) -> list[str]:
    """Every name `find` accepts for a stage of `kind` on `device`, families first."""
    names = list(families(kind, device))
    if device != "cpu" and "serial" not in names:
        names.append("serial")
    return names + [name for candidate in variants(kind, device) for name in candidate.names]


def find_span(kind: str, name: str, device: str) -> Variant | None:
    """The span variant called `name` (full name or family, now or before) on `device`, or None."""
    family, _, rest = name.partition(".")
    return next((v for v in _members(kind, family, device) if not rest or name in v.names), None)


def find(kind: str, name: str, device: str, stage: str | None = None) -> Variant:
    """The variant called `name`: a full name, or a family's name for its default variant.

    On a GPU, `serial` and any CPU variant's full name mean the CPU variant, run with copies.
    Raises LenetError with the valid choices where there is none.
    """
    import_offered(kind, name.partition(".")[0])
    exact = REGISTRY.get((kind, name))
    if exact is not None and exact.needs.device in (device, "cpu"):
        return exact
    members = _members(kind, name, device)
    if not members and name == "serial":
        members = _members(kind, name, "cpu")
    if members:
        return next((member for member in members if member.default), members[0])
    where = f"stage {stage}" if stage else f"a {kind} stage"
    valid = choose(name, choices(kind, device))
    if exact is not None:
        raise LenetError(f"variant {name} of {where} needs a GPU; on this device {valid}")
    reason = refused(kind, name)
    because = f": {reason}" if reason else ""
    raise LenetError(f"{where} has no variant {name!r} on {device}{because}; {valid}")
