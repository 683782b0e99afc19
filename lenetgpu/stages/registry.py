"""Registration, names and lookup of variants.

A variant is one algorithm for one kind of stage on one kind of device. Its function writes a
pre-allocated output and returns nothing; the data that the CLI, the tests and the tables need about
it is in its registration. Packages declare with `offer` which families each module registers, so
that a plan is resolved without importing modules that it does not run.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lenetgpu.errors import LenetError, choose
from lenetgpu.network import CLASSIFIER, CONV_POOL, FEATURES
from lenetgpu.problems import Conv

if TYPE_CHECKING:
    from lenetgpu.gpu.device import Gpu
    from lenetgpu.gpu.machines import Machine
    from lenetgpu.gpu.nvrtc import Kernel

KINDS = ("conv", "pool", "fc", "argmax")
SPAN_KINDS = (CONV_POOL, FEATURES, CLASSIFIER)
SUPPORT_KINDS = ("scale", "relayout")
ALL_KINDS = (*KINDS, *SPAN_KINDS, *SUPPORT_KINDS)
WEIGHTED = ("conv", "fc", *SPAN_KINDS)
Kernels = Callable[[Any, int], "tuple[Kernel, ...]"]
Rows = list[tuple[str, str]]


_REFUSALS: dict[str, Callable[[Conv], str]] = {
    "strides": lambda p: "supports rows and columns of one stride, not {}x{}".format(*p.step),
    "pads": lambda p: "supports equal padding on every side, not {},{},{},{}".format(*p.around),
    "dilation": lambda p: "supports no dilation, not {}x{}".format(*p.dilation),
    "groups": lambda p: f"supports one group, not {p.groups}",
    "bias": lambda p: "supports no bias",
    "relu": lambda p: "supports no ReLU",
    "fp16": lambda p: "supports fp32 in and out, not fp16",
    "bf16": lambda p: "supports fp32 in and out, not bf16",
}
OPTIONS = tuple(_REFUSALS)
_BF16_CAPABILITY = 80


def dtype_refusal(problem: Any, compute_capability: int) -> str | None:
    """Return a refusal if that compute capability (75 = 7.5) lacks the problem's dtype, or None."""
    if "bf16" in problem.requires and compute_capability < _BF16_CAPABILITY:
        return f"bf16 requires cuda {_BF16_CAPABILITY / 10}, found {compute_capability / 10}"
    return None


def unsupported(problem: Any, options: frozenset[str]) -> str | None:
    """Return a refusal for the first required option that is not in `options`, or None."""
    missing: frozenset[str] = getattr(problem, "requires", frozenset()) - options
    conv = getattr(problem, "conv", problem)
    return next((_REFUSALS[name](conv) for name in OPTIONS if name in missing), None)


@dataclass(frozen=True)
class Needs:
    """Required device: "cpu", or "cuda" with a minimum compute capability (75 = 7.5).

    `exact` means that capability only: the kernels use instructions of one architecture.
    """

    device: str
    compute_capability: int = 0
    exact: bool = False

    def met_by(self, gpu: "Gpu | Machine") -> bool:
        """Return True if `gpu` meets the requirements."""
        if self.exact:
            return gpu.compute_capability == self.compute_capability
        return gpu.compute_capability >= self.compute_capability

    def __str__(self) -> str:
        if self.device == "cpu":
            return "cpu"
        only = " only" if self.exact else ""
        return f"cuda {self.compute_capability // 10}.{self.compute_capability % 10}{only}"


def cpu() -> Needs:
    """Return the requirements of a variant that runs anywhere."""
    return Needs("cpu")


def cuda(compute_capability: int = 75) -> Needs:
    """Require an NVIDIA GPU of at least this compute capability."""
    return Needs("cuda", compute_capability)


def hopper() -> Needs:
    """Require Hopper (compute capability 9.0) and nothing else: wgmma, setmaxnreg."""
    return Needs("cuda", 90, exact=True)


@dataclass(frozen=True)
class Variant:
    """One algorithm for one kind of stage; its fields are the keywords of `variant`.

    `run` computes it; the first line of its docstring is the summary. `reads` and `writes` list
    the supported input and output layouts, preferred first; the problem names the pair in use.
    `also` are aliases (full names). `default`: the family's name alone means this variant.

    - `prepare(w, problem, batch)` turns a float32 weight array (a span: the tuple of them; a
      convolution with bias: filters and bias, in its dtype) into the argument that `run` receives,
      and may allocate workspace for up to `batch` images.
    - `kernels(problem, batch)` lists every CUDA kernel that a run of 1 to `batch` images may launch
      after `prepare(w, problem, batch)`; `of_shape` makes it from a function of the problem alone.
    - `options` names the supported OPTIONS of a convolution. A problem that requires others is
      refused before `supports` is called, which returns None or a refusal.
    - `explain(problem, batch, machine)` returns (property, value) rows on how it divides that work
      on a `lenetgpu.gpu.machines.Machine`: bytes, reuse, idle threads.
    - `local_memory`: its kernels use per-thread local memory on purpose; `raw_images`: it accepts
      uint8 or float32 images; `repeats`: two runs on the same images agree to the bit.
    """

    kind: str
    family: str
    name: str
    summary: str
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
    options: frozenset[str] = frozenset()
    supports: Callable[[Any], str | None] | None = None
    explain: Callable[[Any, int, "Machine"], Rows] | None = None
    local_memory: bool = False
    raw_images: bool = False
    repeats: bool = True

    @property
    def full_name(self) -> str:
        """`family.name`."""
        return f"{self.family}.{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """The full name and all aliases."""
        return (self.full_name, *self.also)

    def refusal(self, problem: Any) -> str | None:
        """Return None if the variant supports `problem`, else a sentence on what it supports."""
        unknown = unsupported(problem, self.options)
        return unknown or (self.supports(problem) if self.supports else None)

    def laid_out(self, problem: Any) -> Any:
        """Return `problem` in the first layouts that the variant supports, or the last refusal."""
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


class NameInUseError(ValueError):
    """The name is in use by another variant of the same kind."""


REGISTRY: dict[tuple[str, str], Variant] = {}
_PLAIN = dict.fromkeys(("conv", "pool", "scale"), ("NHWC", "NHWC")) | {
    "fc": ("NC", "NC"),
    "argmax": ("NC", "N"),
    FEATURES: ("NHWC", ()),
    CLASSIFIER: ((), "N"),
}


def make_variant(run: Callable[..., None], **fields: Any) -> Variant:
    """Return `run` as a variant, not registered; `fields` are Variant's.

    Name and summary are by default the function's name and the first line of its docstring.
    A single layout or alias needs no tuple; `options` (old name: `takes`) is a string of words;
    ValueError if one is unknown. By default the variant runs on a GPU if it has kernels, in the
    plain layouts of its kind.
    """
    fields.setdefault("needs", cuda() if "kernels" in fields else cpu())
    fields.setdefault("raw_images", fields.get("kind") == FEATURES)
    plain = _PLAIN.get(fields.get("kind", ""), ((), ()))
    for name, default in zip(("reads", "writes", "also"), (*plain, ()), strict=True):
        value = fields.get(name, default)
        fields[name] = (value,) if isinstance(value, str) else value
    options = frozenset(fields.pop("takes", fields.get("options", "")).split())
    unknown = ", ".join(sorted(options - {*OPTIONS}))
    if unknown:
        raise ValueError(f"expected options of {', '.join(OPTIONS)}, found {unknown}")
    fields["options"] = options
    summary = (run.__doc__ or "").strip().partition("\n")[0]
    return Variant(run=run, **{"name": run.__name__.rstrip("_"), "summary": summary, **fields})


def of_shape(make: "Callable[[Any], Kernel | tuple[Kernel, ...]]") -> Kernels:
    """Return `Variant.kernels` from a function of the problem alone, to one kernel or several."""

    def kernels(problem: Any, batch: int) -> "tuple[Kernel, ...]":
        result = make(problem)
        return result if isinstance(result, tuple) else (result,)

    return kernels


def variant(**fields: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the decorated function as a variant; `fields` are Variant's."""

    def register(run: Callable[..., None]) -> Callable[..., None]:
        made = make_variant(run, **fields)
        for name in made.names:
            if (made.kind, name) in REGISTRY:
                raise NameInUseError(f"{made.kind} variant {name} is registered twice")
            REGISTRY[made.kind, name] = made
        return run

    return register


conv_variant = partial(variant, kind="conv")
pool_variant = partial(variant, kind="pool")
fc_variant = partial(variant, kind="fc")
argmax_variant = partial(variant, kind="argmax")
features_variant = partial(variant, kind=FEATURES)
classifier_variant = partial(variant, kind=CLASSIFIER)


class _Offer(NamedTuple):
    rank: int
    kinds: tuple[str, ...]
    families: frozenset[str] | None


_OFFERS: dict[str, _Offer] = {}
_REFUSED = {
    ("argmax", "fft"): "an FFT is for sums of products, and the largest of K scores is no sum"
}


def refused(kind: str, family: str) -> str | None:
    """Return the reason why no variant of `kind` can belong to `family`; None if one could."""
    return _REFUSED.get((kind, family))


def offer(package: str, folder: Path, kinds: Iterable[str], families: Mapping[str, str]) -> None:
    """Declare the modules of a package, to be imported when variants of `kinds` are requested.

    `families` maps a module to the families that it registers ("" for none), in the order of
    `variants`: naive to fast. A module without an entry comes last and is imported for any family.
    A name that begins with "lenetgpu." is a module outside `package`.
    """
    listed = {name.partition(".")[0] for name in families}
    modules = [module.name for module in pkgutil.iter_modules([str(folder)])]
    for name in (*families, *(name for name in modules if name not in listed)):
        module = name if name.startswith("lenetgpu.") else f"{package}.{name}"
        members = frozenset(families[name].split()) if name in families else None
        _OFFERS[module] = _Offer(len(_OFFERS), tuple(kinds), members)


def import_offered(kind: str | None = None, family: str | None = None) -> None:
    """Import the modules that may register variants of `kind` and `family`; None means any."""
    for module, (_, kinds, members) in _OFFERS.items():
        if kind in (None, *kinds) and (None in (family, members) or family in (members or ())):
            importlib.import_module(module)


def _rank(made: Variant) -> tuple[int, int]:
    """Return the kind's rank, then the module's rank among those offered; plugins come last."""
    module = made.run.__module__
    while module and module not in _OFFERS:
        module = module.rpartition(".")[0]
    return ALL_KINDS.index(made.kind), _OFFERS[module].rank if module else len(_OFFERS)


def _loaded(kind: str | None, device: str | None) -> list[Variant]:
    registered = [v for (_, name), v in REGISTRY.items() if name == v.full_name]
    matching = [v for v in registered if kind in (None, v.kind)]
    return sorted((v for v in matching if device in (None, v.needs.device)), key=_rank)


def variants(kind: str | None = None, device: str | None = None) -> list[Variant]:
    """Return all variants by kind, then in module order; optionally of one kind and device."""
    import_offered(kind)
    return _loaded(kind, device)


def _members(kind: str, family: str, device: str) -> list[Variant]:
    import_offered(kind, family)
    prefix = f"{family}."
    return [v for v in _loaded(kind, device) if any(n.startswith(prefix) for n in v.names)]


def families(kind: str, device: str) -> dict[str, list[Variant]]:
    """Return variants by family name, aliases included, for one kind and device."""
    members: dict[str, list[Variant]] = {}
    for candidate in variants(kind, device):
        for family in dict.fromkeys(name.split(".")[0] for name in candidate.names):
            members.setdefault(family, []).append(candidate)
    return members


def choices(kind: str, device: str) -> list[str]:
    """Return every name `find` accepts for a stage of `kind` on `device`, families first."""
    names = list(families(kind, device))
    if device != "cpu" and "serial" not in names:
        names.append("serial")
    return names + [name for candidate in variants(kind, device) for name in candidate.names]


def find_span(kind: str, name: str, device: str) -> Variant | None:
    """Return the span variant `name` (full name, alias or family) on `device`, or None."""
    family, _, rest = name.partition(".")
    return next((v for v in _members(kind, family, device) if not rest or name in v.names), None)


def find(kind: str, name: str, device: str, stage: str | None = None) -> Variant:
    """Return the variant `name`: a full name, or a family's name for its default variant.

    On a GPU, `serial` and any CPU variant's full name mean the CPU variant, run with copies.
    Raises LenetError with the valid choices if there is none.
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
        raise LenetError(f"variant {name} of {where} requires a GPU; on this device {valid}")
    reason = refused(kind, name)
    because = f": {reason}" if reason else ""
    raise LenetError(f"{where} has no variant {name!r} on {device}{because}; {valid}")
