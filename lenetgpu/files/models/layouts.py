"""Our layouts of the four tensors and PyTorch's, and the matching of a foreign file's tensors.

Ours: filters (K, K, C, M), fully connected (in, out), fc1's rows in the order H, W, C of pool2's
output. PyTorch's: filters (M, C, K, K), linear (out, in), its columns in the order C, H, W, as
`flatten` leaves NCHW images. The eight shapes differ, so a shape determines name and layout.
"""

from collections.abc import Iterable, Mapping

from lenetgpu.arrays import Array, np
from lenetgpu.errors import unexpected
from lenetgpu.network import stage, weight_shapes

OURS, TORCH = "lenetgpu's", "PyTorch's"
SUFFIX = ".weight"
ANOTHER = ": another network; train the one in docs/weights-forms.md"


def rows_by_channel(fc1: Array) -> Array:
    """Return fc1's weights (1024, n) with rows in the order C, H, W instead of H, W, C."""
    height, width, maps = stage("pool2").problem.out_shape
    return fc1.reshape(height, width, maps, -1).transpose(2, 0, 1, 3).reshape(fc1.shape)


def to_torch(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Return the four tensors in PyTorch's layouts, C-contiguous, by `conv1.weight` and so on."""
    turned = {**tensors, "fc1": rows_by_channel(tensors["fc1"])}
    theirs = {n: w.transpose(3, 2, 0, 1) if w.ndim == 4 else w.T for n, w in turned.items()}
    return {name + SUFFIX: np.ascontiguousarray(w) for name, w in theirs.items()}


def from_torch(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Return the four tensors by our names, converted from PyTorch's layouts to ours."""
    ours = {n: w.transpose(2, 3, 1, 0) if w.ndim == 4 else w.T for n, w in tensors.items()}
    height, width, maps = stage("pool2").problem.out_shape
    by_channel = ours["fc1"].reshape(maps, height, width, -1)
    return ours | {"fc1": by_channel.transpose(1, 2, 0, 3).reshape(ours["fc1"].shape)}


def torch_shapes() -> dict[str, tuple[int, ...]]:
    """Return PyTorch's shapes by our names."""
    return {
        name: (shape[3], shape[2], shape[0], shape[1]) if len(shape) == 4 else shape[::-1]
        for name, shape in weight_shapes().items()
    }


def by(shape: tuple[int, ...]) -> str:
    """Return a shape as tables print it: "5x5x1x32"."""
    return "x".join(map(str, shape)) or "()"


def require_no_bias(path: object, name: str, bias: Array) -> None:
    """Raise LenetError unless a bias is all zero."""
    if np.count_nonzero(bias):
        found = f"{name} with {np.count_nonzero(bias):,} other values; train without biases"
        raise unexpected(path, "no biases, which this network has not, or zeros", found)


class Matching:
    """A file's tensors, matched by shape one after the other, with their names in the file."""

    def __init__(self, path: object) -> None:
        self._path = path
        self._known = {shape: (OURS, name) for name, shape in weight_shapes().items()}
        self._known |= {shape: (TORCH, name) for name, shape in torch_shapes().items()}
        self._found: dict[str, tuple[str, str, Array]] = {}

    def require(self, name: str, shape: tuple[int, ...]) -> bool:
        """Return True; raise LenetError unless name and shape fit one of the tensors or a bias."""
        known, stem = weight_shapes(), name.removesuffix(SUFFIX)
        if shape in {(dims[-1],) for dims in known.values()}:
            return True
        if stem in known:
            ours, theirs = known[stem], torch_shapes()[stem]
            if shape not in (ours, theirs):
                expected = f"shape {by(ours)} or, in PyTorch's layout, {by(theirs)}"
                raise unexpected(self._path, f"{name} to have {expected}", by(shape) + ANOTHER)
        elif shape not in self._known:
            expected = f"this network's weights ({_listed(known)}) and nothing else"
            raise unexpected(self._path, expected, f"{name} of shape {by(shape)}{ANOTHER}")
        return True

    def add(self, name: str, tensor: Array) -> None:
        """Add a tensor; leave out zero biases, raise LenetError for others and for second ones."""
        self.require(name, tensor.shape)
        if tensor.ndim == 1:
            require_no_bias(self._path, name, tensor)
            return
        layout, ours = self._known[tensor.shape]
        if ours in self._found:
            found = f"{self._found[ours][1]} and {name} of shapes that fit"
            raise unexpected(self._path, f"one tensor for {ours}", found)
        self._found[ours] = (layout, name, tensor)

    def done(self) -> dict[str, Array]:
        """Return the four tensors by our names, in our layouts; raise LenetError if not all exist.

        All must be in one layout: the order of fc1's rows in a mixture is unknown.
        """
        missing = [name for name in weight_shapes() if name not in self._found]
        if missing:
            names = ", ".join(name for _, name, _ in self._found.values()) or "none"
            raise unexpected(self._path, f"weights also for {_listed(missing)}", f"only {names}")
        layouts = {layout: name for layout, name, _ in self._found.values()}
        if len(layouts) > 1:
            found = f"{layouts[OURS]} in {OURS} and {layouts[TORCH]} in {TORCH}"
            raise unexpected(self._path, "all tensors in one layout", found)
        tensors = {name: self._found[name][2] for name in weight_shapes()}
        return from_torch(tensors) if TORCH in layouts else tensors


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"{name} {by(torch_shapes()[name])}" for name in names)
