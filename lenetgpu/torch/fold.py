"""BatchNorm, addition and ReLU after convolutions, in a graph of torch.fx."""

import copy
import operator
from collections import Counter
from collections.abc import Container, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

_ADDS = (operator.add, operator.iadd, torch.add, "add", "add_")
_RELUS = (F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Tracer(fx.Tracer):  # type: ignore[misc]
    """Keep convolutions of any class as modules."""

    def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
        """Return True for modules that the graph calls."""
        return isinstance(m, nn.Conv2d) or bool(super().is_leaf_module(m, module_qualified_name))


def hooked(module: Any) -> bool:
    """Return True if `module` has hooks, which a fused call would not run."""
    return any(getattr(module, name) for name in _HOOKS)


def fused(graph: Any, taken: Container[str]) -> Iterator[tuple[Any, bool, str]]:
    """Replace the convolutions named in `taken` in the GraphModule `graph`, in eval mode.

    Yield copies with BatchNorm folded in, if ReLU follows, and a note. Called with a second tensor,
    a copy adds it before ReLU. Modules that are called twice, whose parameters the graph reads, or
    that are fused already stay as they are.
    """
    modules, nodes = dict(graph.named_modules()), list(graph.graph.nodes)
    calls = Counter(node.target for node in nodes if node.op == "call_module")
    read = {node.target.rpartition(".")[0] for node in nodes if node.op == "get_attr"}
    for name, node in {one.target: one for one in nodes if one.op == "call_module"}.items():
        if name not in taken:
            continue
        conv, chain, words, place = copy.deepcopy(modules[name]), [node], list[str](), node
        added, relu = [], False
        fused_before = getattr(vars(conv).get("_lenetgpu"), "note", "")
        alone = calls[name] == 1 and name not in read and not fused_before
        if alone and len(node.args) == 1 and not node.kwargs:
            if type(norm := _called(_user(chain), modules)) is nn.BatchNorm2d and _fold(conv, norm):
                chain.append(_user(chain))
                words.append("BatchNorm")
            other, end = _other(_user(chain), chain[-1]), _user(chain)
            if other is not None and _may_move(
                nodes[nodes.index(node) : nodes.index(end)], modules
            ):
                place, added = end, [other]
                chain.append(end)
                words.append("addition")
            end = _user(chain)
            function = end.op != "call_module" and end.target in _RELUS
            if relu := function or type(_called(end, modules)) is nn.ReLU:
                chain.append(end)
                words.append("ReLU")
        if words:
            with graph.graph.inserting_before(place):
                call = graph.graph.call_module(name, (*node.args, *added))
            chain[-1].replace_all_uses_with(call)
            for one in reversed(chain):
                graph.graph.erase_node(one)
        graph.add_submodule(name, conv)
        yield conv, relu, f"with {', '.join(words)}" if words else ""
    graph.delete_all_unused_submodules()
    graph.graph.lint()
    graph.recompile()


def _user(chain: list[Any]) -> Any:
    """Return the only node that uses the last of `chain`, or that node itself."""
    users = list(chain[-1].users)
    return users[0] if len(users) == 1 else chain[-1]


def _called(node: Any, modules: Any) -> Any:
    """Return the module that `node` calls, if it has no hooks, or None."""
    module = modules[node.target] if node.op == "call_module" else None
    return None if module is None or hooked(module) else module


def _fold(conv: Any, norm: Any) -> bool:
    """Fold BatchNorm into filters and bias, in float64; False if its statistics are not fixed."""
    if norm.training or norm.running_mean is None:
        return False
    sources = (conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.weight, norm.bias)
    w, b, mean, var, *affine = (None if one is None else one.detach().double() for one in sources)
    weight, bias = fuse_conv_bn_weights(w, b, mean, var, norm.eps, *affine)
    conv.bias = nn.Parameter(bias.to(conv.weight.dtype), requires_grad=False)
    conv.weight = nn.Parameter(weight.to(conv.weight.dtype), requires_grad=False)
    return True


def _other(node: Any, last: Any) -> Any:
    """Return the node that `node` adds to `last`; None for anything but an addition of two."""
    if node.op == "call_module" or node.target not in _ADDS or node.kwargs or len(node.args) != 2:
        return None
    left, right = node.args
    if left is right or (node.target in (operator.iadd, "add_") and left is not last):
        return None
    other = right if left is last else left
    return other if isinstance(other, fx.Node) else None


def _may_move(between: list[Any], modules: Any) -> bool:
    """Return True if the first may run after the others, which change no tensor that it reads."""
    return all(
        node.op == "call_module" and not getattr(modules[node.target], "inplace", False)
        for node in between
    )
