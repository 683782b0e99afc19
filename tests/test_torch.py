"""`lenetgpu.torch`: the operator and accelerated models, against PyTorch in float64."""

import copy
import io

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch: run `make test-peers`")
F, nn = torch.nn.functional, torch.nn

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from lenetgpu.lab.conv.request import from_file  # noqa: E402
from lenetgpu.torch import accelerate, conv2d, operator, report, restore  # noqa: E402

pytestmark = pytest.mark.peers
OURS = torch.ops.lenetgpu.conv2d.default
on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def counts(model, *inputs):
    """Return the convolutions of a call by lenetgpu, and by PyTorch."""
    seen = []

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Calls():
        model(*inputs)
    return seen.count(OURS), seen.count(torch.ops.aten.convolution.default)


class Block(nn.Module):
    """A residual block, as in ResNet."""

    def __init__(self, channels, maps, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, maps, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(maps), nn.BatchNorm2d(maps)
        self.conv2 = nn.Conv2d(maps, maps, 3, 1, 1, bias=False)
        self.relu, self.down = nn.ReLU(inplace=True), nn.Sequential()
        if stride != 1 or channels != maps:
            conv = nn.Conv2d(channels, maps, 1, stride, bias=False)
            self.down = nn.Sequential(conv, nn.BatchNorm2d(maps))

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.down(x)
        return self.relu(y)


class Branching(Block):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


class Inverted(nn.Sequential):
    """An inverted residual, as in MobileNet."""

    def __init__(self, channels, maps):
        super().__init__(
            nn.Conv2d(channels, maps, 1), nn.BatchNorm2d(maps), nn.ReLU6(),
            nn.Conv2d(maps, maps, 3, padding=1, groups=maps), nn.BatchNorm2d(maps, affine=False),
            nn.ReLU6(), nn.Conv2d(maps, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x):
        return x + super().forward(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.under = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, 2, 1)
        self.last = nn.Conv2d(12, 2, (1, 3), padding=(0, 2), dilation=2)

    def forward(self, x):
        fine = F.relu(self.first(x))
        coarse = F.interpolate(torch.relu(self.under(fine)), size=fine.shape[2:])
        return self.last(torch.cat([coarse, fine], 1))


class Changing(nn.Module):
    """Convolutions whose following operations must not be fused."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Conv2d(3, 3, 1) for _ in "abcd")
        self.norm, self.relu = nn.BatchNorm2d(3), nn.LeakyReLU()

    def forward(self, x):
        x = x * 1
        first = self.a(x)
        both = first + F.relu(x, inplace=True)  # of what a has read
        last = self.c(self.b(self.b(both)) + self.relu(both))
        return self.relu(self.d(self.norm(last) + last))


# model -> its convolutions, and how many of the folded one have each note
MODELS = {
    "resnet": (lambda: nn.Sequential(Block(3, 8), Block(8, 8), Block(8, 12, 2)), 8, {
        "with BatchNorm, ReLU": 3, "with BatchNorm, addition, ReLU": 3, "with BatchNorm": 2}),
    "mobilenet": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, 2), Inverted(4, 9)), 4, {
        "": 1, "with BatchNorm": 2, "with BatchNorm, addition": 1}),
    "unet": (UNet, 3, {"with ReLU": 2, "": 1}),
    "changing": (Changing, 5, {"": 4}),
}  # fmt: skip
of_models = pytest.mark.parametrize("name", MODELS)


def made(name, device="cpu"):
    """Return a model in eval mode with random statistics, and images."""
    model = MODELS[name][0]().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            for one in module.parameters():
                nn.init.uniform_(one, 0.5, 2)
    return model.to(device), torch.randn(2, 3, 12, 10, device=device)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


def near(found, expected, tolerance=2e-6):
    """Compare with float64, relative to the largest value."""
    error = (found.double() - expected.double()).abs().max() / expected.double().abs().max()
    assert error <= tolerance, float(error)
    return True


def plain(x, w, bias=None, add=None, stride=1, padding=0, relu=False, **named):
    if isinstance(padding, tuple) and isinstance(padding[0], tuple):
        x, padding = F.pad(x, (*padding[1], *padding[0])), 0
    y = F.conv2d(x, w, bias, stride, padding, **named)
    y = y if add is None else y + add
    return F.relu(y) if relu else y


@on_devices
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("shape", "filters", "named"),
    [
        ((2, 6, 9, 8), (4, 6, 3, 2), {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}),
        ((1, 6, 7, 7), (4, 3, 4, 2), {"padding": "same", "groups": 2, "relu": True}),
        ((3, 4, 5, 6), (4, 1, 3, 3), {"padding": ((1, 0), (2, 3)), "groups": 4}),
        ((2, 3, 5, 5), (8, 3, 1, 1), {"padding": "valid", "relu": True}),
    ],
)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_conv2d_and_its_gradients(shape, filters, named, form, device, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # of PyTorch's gradients
    x, w, bias = torch.randn(shape), torch.randn(filters), torch.randn(filters[0])
    add = torch.randn(plain(x, w, **named).shape)
    x = x.contiguous(memory_format=form)
    inputs = [one.to(device).requires_grad_() for one in (x, w, bias, add)]
    wide = [one.detach().double().requires_grad_() for one in inputs]
    y, expected = conv2d(*inputs[:3], add=inputs[3], **named), plain(*wide, **named)
    assert y.is_contiguous(memory_format=form) and y.dtype == torch.float32 and near(y, expected)
    grad = torch.randn(y.shape, device=device)
    gradients = zip(
        torch.autograd.grad(y, inputs, grad),
        torch.autograd.grad(expected, wide, grad.double()), strict=True,
    )  # fmt: skip
    assert all(near(one, other, 1e-5) for one, other in gradients)
    with torch.inference_mode():
        assert torch.equal(conv2d(*inputs[:3], add=inputs[3], **named), y)
        assert conv2d(x[:0].to(device), inputs[1], **named).shape == (0, *y.shape[1:])


@on_devices
@pytest.mark.parametrize("pads", [[1, 1, 1, 1], [0, 1, 2, 0]])
def test_operator_passes_opcheck(pads, device):
    shapes = (2, 4, 6, 5), (6, 2, 3, 3), (6,), (2, 6, 4 + sum(pads[::2]), 3 + sum(pads[1::2]))
    x, w, b, add = (torch.randn(s, device=device, requires_grad=True) for s in shapes)
    args = ([1, 1], pads, [1, 1], 2, True, add, 0)
    torch.library.opcheck(OURS, (x, w, b, *args))
    torch.library.opcheck(OURS, (x.contiguous(memory_format=torch.channels_last), w, None, *args))


def test_compiled_without_breaks():
    x, w = torch.randn(2, 3, 6, 7, requires_grad=True), torch.randn(4, 3, 3, 2)
    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda x, w: 2 * conv2d(x, w, padding="same", relu=True),
            fullgraph=True, backend="aot_eager", dynamic=dynamic,
        )  # fmt: skip
        for images in (x, x[:, :, :4]):
            assert torch.equal(
                compiled(images, w), 2 * conv2d(images, w, None, 1, "same", relu=True)
            )
    (model, images), graphs = made("resnet"), []
    accelerate(model, cpu=True)
    compiled = torch.compile(model, fullgraph=True, backend=lambda g, _: graphs.append(g) or g)
    with torch.no_grad():
        expected = compiled(images)
        assert torch.equal(model(images), expected)
        assert str(graphs[0].graph).count("lenetgpu.conv2d") == MODELS["resnet"][1]
        model[0].conv1.load_state_dict({"weight": torch.zeros(8, 3, 3, 3)})
        assert not torch.equal(compiled(images), expected) and len(graphs) == 1


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"x": torch.ones(3, 6, 6)}, ValueError, "expected shape"),
        ({"x": torch.ones(1, 4, 6, 6)}, ValueError, r"\(N, 3, H, W\), found \(1, 4, 6, 6\)"),
        ({"x": torch.ones(1, 3, 2, 6)}, ValueError, "padded maps of at least 3 x 3"),
        ({"x": torch.ones(1, 3, 6, 6).half()}, TypeError, "expected float32 like the filters"),
        ({"x": torch.ones(1, 3, 6, 6, device="meta")}, RuntimeError, "weight: expected meta"),
        ({"x": [1.0]}, RuntimeError, "'Tensor' for argument 'x' but instead found type 'list'"),
        ({"weight": torch.ones(4, 3, 3)}, ValueError, "expected 4 dimensions"),
        ({"weight": torch.ones(4, 3, 3, 3, dtype=torch.int32)}, TypeError, "found int32"),
        ({"bias": torch.ones(3)}, ValueError, r"expected shape \(4,\)"),
        ({"bias": torch.ones(4, device="meta")}, RuntimeError, "expected cpu like x, found meta"),
        ({"add": torch.ones(1, 4, 3, 4)}, ValueError, r"expected shape \(1, 4, 4, 4\)"),
        ({"stride": 0}, ValueError, "at least 1"),
        ({"stride": 1.5}, TypeError, "whole number"),
        ({"padding": "full"}, ValueError, "'valid', or 'same'"),
        ({"padding": "same", "stride": 2}, ValueError, "stride 1"),
        ({"groups": 3}, ValueError, "groups"),
    ],
)
def test_errors_say_what_was_expected_and_found(change, error, words):
    named = {"x": torch.ones(1, 3, 6, 6), "weight": torch.ones(4, 3, 3, 3)}
    with pytest.raises(error, match=words):
        conv2d(**(named | change))


def test_meta_tensors_give_shapes():
    x, w = torch.ones(1, 3, 6, 6, device="meta"), torch.ones(4, 3, 3, 3, device="meta")
    assert conv2d(x, w).shape == (1, 4, 4, 4) and conv2d(x, w).device.type == "meta"
    with pytest.raises(ValueError, match=r"add: expected \(1, 4, 4, 4\)"):
        conv2d(x, w, add=x)


def test_filters_are_prepared_once_for_every_version(monkeypatch):
    prepared, known = [], operator.prepare
    monkeypatch.setattr(operator, "prepare", lambda *a: prepared.append(a) or known(*a))
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    assert torch.equal(conv2d(x, w), conv2d(x, w)) and len(prepared) == 1
    w.add_(1)
    assert near(conv2d(x, w), plain(x.double(), w.double())) and len(prepared) == 2
    assert not torch.equal(conv2d(x, w, relu=True), conv2d(x, w)) and len(prepared) == 3
    with torch.inference_mode():
        made_here = w.clone()
        assert torch.equal(conv2d(x, made_here), conv2d(x, made_here)) and len(prepared) == 5


@on_devices
@of_models
def test_accelerated_model_in_place(name, device):
    (model, x), seen = made(name, device), []
    expected, layers = copy.deepcopy(model).double()(x.double()), [*model.modules()]
    keys, kinds, many = [*model.state_dict()], [*map(type, layers)], MODELS[name][1]
    conv = next(one for one in layers if isinstance(one, nn.Conv2d))
    conv.register_forward_hook(lambda *args: seen.append(args))
    assert accelerate(model, cpu=True) is model
    with torch.no_grad():
        assert near(model(x), expected, 1e-5) and counts(model, x) == (many, 0) and len(seen) == 2
    assert [*model.modules()] == layers and [*model.state_dict()] == keys
    assert all(row.taken and not row.why for row in report(model))
    assert restore(model) is model and [*map(type, layers)] == kinds
    with torch.no_grad():
        assert counts(model, x) == (0, many)
    assert {row.why for row in report(model)} == {"not accelerated"}


@on_devices
@of_models
def test_folded_model(name, device):
    (model, x), many = made(name, device), MODELS[name][1]
    before = copy.deepcopy(model.state_dict())
    graph = accelerate(accelerate(model, cpu=True), fold=True, cpu=True)
    with torch.no_grad():
        expected = copy.deepcopy(restore(model)).double()(x.double())
        assert near(graph(x), expected, 1e-5)
        assert counts(graph, x) == (many, 0) and counts(model, x) == (0, many)
    assert near(graph(x.requires_grad_()), expected, 1e-5)  # by PyTorch
    notes = [row.why for row in report(graph)]
    assert {note: notes.count(note) for note in notes} == MODELS[name][2]
    assert all(torch.equal(one, before[key]) for key, one in model.state_dict().items())
    if any(notes):
        with pytest.raises(ValueError, match="use the original"):
            restore(nn.Sequential(graph))
    with torch.no_grad():  # what is fused stays so
        assert near(accelerate(graph, cpu=True)(x), expected, 1e-5)
        assert near(accelerate(graph, fold=True, cpu=True)(x), expected, 1e-5)
        for name, one in [*graph.named_modules()]:
            if isinstance(one, nn.Conv2d):
                replica = one._replicate_for_data_parallel()
                replica._parameters = one._parameters
                graph.set_submodule(name, replica)
        assert counts(graph, x) == (0, many) and near(graph(x), expected, 1e-5)


class Tied(nn.Sequential):
    def forward(self, x):
        return F.conv_transpose2d(super().forward(x), self[0].weight)


def test_filters_that_the_graph_reads_are_not_folded():
    model, x = Tied(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval(), torch.randn(2, 3, 6, 6)
    model[1].running_var.fill_(9)
    with torch.no_grad():
        assert near(accelerate(model, fold=True, cpu=True)(x), model(x), 1e-5)


def test_filters_at_an_address_used_before_are_prepared():
    conv, x = accelerate(nn.Conv2d(3, 400, 3).eval(), cpu=True), torch.randn(2, 3, 8, 8)
    w, many, zero = torch.randn(4096, 1, 1, 1), torch.randn(4096), torch.zeros(1, 1, 1, 1)
    with torch.no_grad():
        found = [conv2d(zero, w, many + step).flatten() for step in range(100)]
        assert all(torch.equal(y, many + step) for step, y in enumerate(found))
        kept = {name: one.clone() for name, one in conv.named_parameters()}
        for step in range(1, 100):
            y = torch.func.functional_call(conv, {k: v * step for k, v in kept.items()}, (x,))
            assert near(y, plain(x, *kept.values()) * step)


def test_filters_follow_fused_optimizers():
    conv, x = accelerate(nn.Conv2d(3, 4, 3, bias=False).eval(), cpu=True), torch.randn(2, 3, 6, 6)
    steps = torch.optim.Adam(conv.parameters(), lr=1, fused=True)
    for _ in range(2):
        with torch.no_grad():
            assert near(conv(x), plain(x.double(), conv.weight.double()))
        y = conv2d(x, conv.train().weight)
        assert near(y, plain(x.double(), conv.weight.double()))
        y.sum().backward()
        steps.step()
        conv.eval()


def test_forward_derivatives_are_pytorchs():
    conv, x = accelerate(nn.Conv2d(3, 4, 3).eval(), cpu=True), torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        moved = torch.func.jvp(conv, (x,), (x,))[1]
        assert near(moved, plain(x.double(), conv.weight.double()))


def test_what_fold_cannot_copy_stays():
    block, x = Block(3, 3).eval(), torch.ones(1, 3, 5, 5)
    block.conv1.register_forward_hook(lambda *args: None)
    block.bn2.register_forward_hook(lambda *args: None)
    rows = report(accelerate(block, fold=True, cpu=True))
    assert [(row.taken, row.why) for row in rows] == [(False, "has hooks"), (True, "")]
    model = Branching(3, 3).eval()
    expected = model(x)
    assert accelerate(model, fold=True, cpu=True) is model
    assert "cannot trace" in report(model)[0].why and len(report(model)) == 3
    with torch.no_grad():
        assert counts(model, x) == (2, 0) and near(model(x), expected)


def test_fallbacks_to_pytorch():
    conv, x = accelerate(nn.Conv2d(3, 4, 3).eval(), cpu=True), torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        assert counts(conv, x) == (1, 0)
        assert counts(conv, x[0]) == counts(conv.train(), x) == (0, 1)
        conv.eval()
        with torch.autocast("cpu", torch.bfloat16):
            assert counts(conv, x) == (0, 1) and conv(x).dtype == torch.bfloat16
        with pytest.raises(RuntimeError, match="channels"):
            conv(x[:, :2])
        assert counts(conv.double(), x.double()) == (0, 1)
        assert counts(conv.bfloat16(), x.bfloat16()) == (1, 0)
        expected = plain(x.bfloat16().double(), conv.weight.double(), conv.bias.double())
        assert near(conv(x.bfloat16()), expected, 2**-8)
    assert counts(conv.float(), x) == (0, 1)
    assert counts(conv.requires_grad_(False), x) == (1, 0)
    conv._lenetgpu.cpu = False
    assert counts(conv, x) == (0, 1)


def test_filters_follow_their_parameters():
    conv, x = accelerate(nn.Conv2d(3, 4, 3).eval(), cpu=True), torch.randn(2, 3, 6, 6)

    def current():
        return near(conv(x), plain(x.double(), conv.weight.double(), conv.bias.double()))

    with torch.inference_mode():
        assert current()
        conv.load_state_dict(nn.Conv2d(3, 4, 3).state_dict())
        assert current()
        inside = accelerate(nn.Conv2d(3, 4, 3).eval(), cpu=True)  # its parameters have no version
        before = inside(x)
        inside.load_state_dict(conv.state_dict())
        assert not torch.equal(inside(x), before) and torch.equal(inside(x), conv(x))
    with torch.no_grad():
        conv.bias.add_(1)
        assert current()
        conv.weight = nn.Parameter(torch.randn(4, 3, 3, 3))
        assert current()
        conv.weight.data.add_(1)  # unseen, as documented
        with pytest.raises(AssertionError):
            current()
        conv._apply(lambda one: one)
        assert current()
        twin = copy.deepcopy(conv)
        twin.load_state_dict({"weight": torch.ones(4, 3, 3, 3), "bias": torch.zeros(4)})
        assert near(twin(x), plain(x.double(), torch.ones(4, 3, 3, 3).double())) and current()
        assert twin._lenetgpu.handle != conv._lenetgpu.handle
        torch.save(conv, buffer := io.BytesIO())
        buffer.seek(0)
        assert torch.equal(torch.load(buffer, weights_only=False)(x), conv(x))


def test_layers_that_are_left_say_why():
    class Own(nn.Conv2d):
        pass

    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3, padding="same"), Own(2, 2, 1),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), nn.Conv2d(2, 2, 1).double(),
        nn.LazyConv2d(2, 1), nn.Conv2d(2, 4, (1, 3), groups=2),
    )  # fmt: skip
    rows = report(accelerate(model, filter=lambda name, _: name != "0", cpu=True))
    found = ["filter", "'same'", "forward", "circular", "float64", "forward", ""]
    assert all(words in row.why for row, words in zip(rows, found, strict=True))
    assert [row.taken for row in rows] == [False] * 6 + [True] and rows[6].shape == (4, 1, 1, 3)
    for named in ({"precision": "tf32"}, {"tolerance": float("nan")}, {"fold": True}):
        with pytest.raises(ValueError, match="expected"):
            accelerate(model, **named)
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        accelerate(model.forward)


def test_tolerance_leaves_inaccurate_layers_to_pytorch(capsys):
    conv, x = nn.Conv2d(3, 4, 3).eval(), torch.randn(2, 3, 6, 6)
    theirs = copy.deepcopy(conv)
    with torch.no_grad():
        accelerate(conv, tolerance=1e-5, cpu=True, verbose=True)(x)
        assert report(conv)[0].taken and "1 of 1" in capsys.readouterr().out
        accelerate(conv, tolerance=1e-12, cpu=True)
        assert torch.equal(conv(x), theirs(x)) and not report(conv)[0].taken
        assert "of the largest value, tolerance 1.0e-12" in report(conv)[0].why


def test_without_a_gpu_nothing_changes(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    model = nn.Sequential(nn.Conv2d(1, 1, 1)).eval()
    with pytest.warns(UserWarning, match="no NVIDIA GPU"):
        assert accelerate(model, fold=True) is model
    assert type(model[0]) is nn.Conv2d and report(model)[0].why == "no NVIDIA GPU with CuPy"


def test_traced_shapes_are_read_by_lenetgpu_conv(monkeypatch, tmp_path):
    monkeypatch.setenv(operator.TRACE, str(tmp_path / "shapes.txt"))
    model, x = made("unet")
    model = accelerate(model, fold=True, cpu=True)
    with torch.no_grad():
        for images in (2, 2, 1):
            model(x[:images])
    given = list(from_file(tmp_path / "shapes.txt", True))
    first, second, third = (one.problem for one in given[:3])
    assert [one.images for one in given] == [2] * 3 + [1] * 3
    assert (third.C, third.H, third.W, third.M, third.R, third.S) == (12, 12, 10, 2, 1, 3)
    assert second.step == (2, 2) and third.around == (0, 2, 0, 2) and third.dilation == (1, 2)
    assert first.bias and first.relu and second.relu and not third.relu


@pytest.mark.gpu
def test_cuda_graphs_replay_accelerated_models():
    model, x = made("resnet", "cuda")
    model, graph = accelerate(model, fold=True), torch.cuda.CUDAGraph()
    with torch.inference_mode():
        model(x)
        with torch.cuda.graph(graph):
            y = model(x)
        x.normal_()
        graph.replay()
        assert torch.equal(y, model(x))
        new, graph = accelerate(nn.Conv2d(3, 1, 1).cuda().eval()), torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError, match="before the capture"), torch.cuda.graph(graph):
            new(x)
