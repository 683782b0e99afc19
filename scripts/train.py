"""Train the LeNet of weights/lenet-mnist.h5 by distilling an ensemble of larger CNNs.

Teachers and students see the same MNIST and UCI training images, deformed on the device. The
last 5,000 MNIST training images are held out to choose among the students; the MNIST test set
and digits-10k are evaluated once, for the chosen student.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import click
import h5py
import numpy as np
import torch
import torch.nn.functional as F
from make_digits import training_part
from numpy.typing import NDArray
from torch import Tensor, nn

from lenetgpu.files.convert import write_weights
from lenetgpu.files.source import load_dataset

ROOT = Path(__file__).resolve().parent.parent
VALIDATION = 5_000
CLASSES = 10
STUDENTS, TEACHERS, EPOCHS, TEACHER_EPOCHS = 4, 3, 110, 30
MIXING = 0.5  # share of student inputs blended with another image
TEMPERATURE = 2.0  # of the softmax that is distilled


class LeNet(nn.Module):
    """The shipped network: (n, 1, 28, 28) float32 in 0..1 -> (n, 10) logits, no biases."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, bias=False)
        self.conv2 = nn.Conv2d(32, 64, 5, bias=False)
        self.fc1 = nn.Linear(1024, 128, bias=False)
        self.fc2 = nn.Linear(128, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.relu(self.conv1(x)), 2)
        x = F.avg_pool2d(F.relu(self.conv2(x)), 2)
        x = x.permute(0, 2, 3, 1).flatten(1)
        return self.fc2(F.relu(self.fc1(x)))

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Kernels as (5, 5, in, out) and dense matrices as (in, out), fc1 rows in H, W, C order."""
        state = {name: p.detach().float().cpu() for name, p in self.named_parameters()}
        return {
            "conv1": state["conv1.weight"].permute(2, 3, 1, 0).contiguous().numpy(),
            "conv2": state["conv2.weight"].permute(2, 3, 1, 0).contiguous().numpy(),
            "fc1": state["fc1.weight"].T.contiguous().numpy(),
            "fc2": state["fc2.weight"].T.contiguous().numpy(),
        }


class Teacher(nn.Sequential):
    """A VGG-style network with batch norm: (n, 1, 28, 28) -> (n, 10) logits."""

    def __init__(self, width: int = 64) -> None:
        layers: list[nn.Module] = []
        channels = 1
        for stage in (1, 2, 4):
            for _ in range(2):
                out = width * stage
                layers += [
                    nn.Conv2d(channels, out, 3, padding=1, bias=False),
                    nn.BatchNorm2d(out),
                    nn.ReLU(inplace=True),
                ]
                channels = out
            layers += [nn.MaxPool2d(2), nn.Dropout(0.2)]
        super().__init__(*layers, nn.Flatten(), nn.Linear(channels * 9, CLASSES))


@dataclass(frozen=True)
class Split:
    """Images (n, 1, 28, 28) float32 in 0..1 and labels (n,) int64 on one device."""

    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, x: NDArray[np.uint8], y: NDArray[np.uint8], device: torch.device) -> Split:
        images = torch.from_numpy(x.copy()).to(device).float().div_(255).unsqueeze(1)
        return cls(images, torch.from_numpy(y.copy()).to(device).long())


def read(folder: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, 28, 28) and labels (n,) of MNIST's IDX files, plain or gzipped."""
    found = load_dataset(next(iter(sorted(folder.glob(f"{part}-images-idx3-ubyte*")))))
    return found.images[..., 0], found.labels.astype(np.uint8)


def uniform(n: int, limit: float, device: torch.device) -> Tensor:
    return torch.empty(n, device=device).uniform_(-limit, limit)


def deform(x: Tensor) -> Tensor:
    """Random affine map, elastic distortion and stroke width for (n, 1, 28, 28) images.

    Each image draws its own strength; about one in eight stays unchanged.
    """
    n, device = len(x), x.device
    share = (1.15 * torch.rand(n, device=device) - 0.15).clamp_(min=0)
    angle = share * uniform(n, math.radians(18), device)
    shear = share * uniform(n, 0.25, device)
    scale_x = torch.exp(share * uniform(n, 0.18, device))
    scale_y = torch.exp(share * uniform(n, 0.18, device))
    cos, sin = angle.cos(), angle.sin()
    rows = (
        torch.stack((cos * scale_x, cos * shear - sin * scale_y), 1),
        torch.stack((sin * scale_x, sin * shear + cos * scale_y), 1),
    )
    offset = share[:, None] * torch.empty(n, 2, device=device).uniform_(-0.18, 0.18)
    theta = torch.cat((torch.stack(rows, 1), offset[:, :, None]), 2)
    field = share[:, None, None, None] * torch.randn(n, 2, 6, 6, device=device) * 0.07
    flow = F.interpolate(field, size=x.shape[2:], mode="bicubic", align_corners=True)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False) + flow.permute(0, 2, 3, 1)
    x = F.grid_sample(x, grid, align_corners=False)
    stroke = (share * uniform(n, 0.6, device))[:, None, None, None]
    thick = F.max_pool2d(x, 3, 1, 1) - x
    thin = -F.max_pool2d(-x, 3, 1, 1) - x
    return x + stroke.clamp(min=0) * thick + (-stroke).clamp(min=0) * thin


def mix(x: Tensor, probability: float) -> Tensor:
    """Blend a share of the images with others of the batch, weights U(0, 0.5)."""
    n = len(x)
    weight = 0.5 * torch.rand(n, device=x.device) * (torch.rand(n, device=x.device) < probability)
    return torch.lerp(x, x[torch.randperm(n, device=x.device)], weight[:, None, None, None])


def fit(
    label: str,
    models: list[nn.Module],
    target: Callable[[Tensor, Tensor], Tensor],
    train: Split,
    validation: Split,
    *,
    epochs: int,
    batch: int,
    rate: float,
    decay: float,
    mixing: float = 0.0,
    temperature: float = 1.0,
    bf16: bool = False,
) -> None:
    """Train independent models on the same batches with AdamW and a one-cycle schedule.

    ``target(x, y)`` gives the class probabilities (n, 10) that softmax(logits / temperature)
    is to match.
    """
    device = train.x.device
    parameters = [p for model in models for p in model.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=decay, fused=True)
    steps = len(train.x) // batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps * epochs, pct_start=0.08, final_div_factor=1000
    )
    start = time.perf_counter()
    for epoch in range(1, epochs + 1):
        for model in models:
            model.train()
        for picks in torch.randperm(len(train.x), device=device)[: steps * batch].split(batch):
            x = mix(deform(train.x[picks]), mixing)
            probabilities = target(x, train.y[picks])
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                logits = [model(x) for model in models]
            losses = [F.cross_entropy(out.float() / temperature, probabilities) for out in logits]
            loss = torch.stack(losses).sum() * temperature**2
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
        if epoch % max(1, epochs // 10) == 0 or epoch == epochs:
            scores = [evaluate(model, validation) for model in models]
            click.echo(
                f"{label} epoch {epoch}/{epochs} {time.perf_counter() - start:.0f} s, validation "
                + " ".join(f"{100 * accuracy:.2f}%/{nll:.4f}" for accuracy, nll in scores)
            )


@torch.no_grad()
def evaluate(model: nn.Module, split: Split, batch: int = 5_000) -> tuple[float, float]:
    model.eval()
    logits = torch.cat([model(x) for x in split.x.split(batch)]).float()
    accuracy = (logits.argmax(1) == split.y).double().mean().item()
    return accuracy, F.cross_entropy(logits, split.y).item()


def ensemble(
    teachers: Iterable[nn.Module], temperature: float
) -> Callable[[Tensor, Tensor], Tensor]:
    """Mean softened class probabilities of the teachers as a target for ``fit``."""
    frozen = [teacher.eval().requires_grad_(False) for teacher in teachers]

    @torch.no_grad()
    def target(x: Tensor, _: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            logits = torch.stack([teacher(x) for teacher in frozen])
        return F.softmax(logits.float() / temperature, 2).mean(0)

    return target


def smoothed(amount: float) -> Callable[[Tensor, Tensor], Tensor]:
    def target(_: Tensor, y: Tensor) -> Tensor:
        return F.one_hot(y, CLASSES).float() * (1 - amount) + amount / CLASSES

    return target


@click.command(context_settings={"show_default": True})
@click.option("--mnist", envvar="LENETGPU_MNIST", required=True,
              type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Directory with the four MNIST IDX files, plain or gzipped.")  # fmt: skip
@click.option("--out", default=ROOT / "weights" / "lenet-mnist.h5",
              type=click.Path(dir_okay=False, path_type=Path))  # fmt: skip
@click.option("--device", default="cuda" if torch.cuda.is_available() else "cpu")
@click.option("--seed", default=1)
@click.option("--limit", type=int, help="Use only the first images of each set, for a dry run.")
@click.option("--epochs", default=EPOCHS, help="Passes over the training images for the students.")
def main(mnist: Path, out: Path, device: str, seed: int, limit: int | None, epochs: int) -> None:
    """Train, choose by validation accuracy, report the test accuracy and write the weights."""
    start = time.perf_counter()
    where = torch.device(device)
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    x, y = read(mnist, "train")
    uci_x, uci_y = training_part(limit or 5_000)
    x_fit, y_fit = x[:-VALIDATION][:limit], y[:-VALIDATION][:limit]
    train = Split.of(np.concatenate((x_fit, uci_x)), np.concatenate((y_fit, uci_y)), where)
    held_out = x[-VALIDATION:][:limit], y[-VALIDATION:][:limit]
    validation = Split.of(*held_out, where)
    click.echo(f"{len(train.x)} training and {len(validation.x)} validation images on {where}")

    last = {"memory_format": torch.channels_last}
    large: list[nn.Module] = [Teacher().to(where, **last) for _ in range(TEACHERS)]
    how = {"epochs": min(epochs, TEACHER_EPOCHS), "batch": 500, "rate": 3e-3, "decay": 0.05}
    fit("teachers", large, smoothed(0.02), train, validation, bf16=True, **how)
    small = [LeNet().to(where, **last) for _ in range(STUDENTS)]
    how = {"epochs": epochs, "batch": 1_000, "rate": 2e-3, "decay": 0.01, "mixing": MIXING}
    target = ensemble(large, TEMPERATURE)
    fit("students", list(small), target, train, validation, temperature=TEMPERATURE, **how)

    cpu = torch.device("cpu")
    held_out_cpu = Split.of(*held_out, cpu)
    scores = [evaluate(model.cpu(), held_out_cpu) for model in small]
    best = max(range(STUDENTS), key=lambda i: (scores[i][0], -scores[i][1]))
    test = Split.of(*(part[:limit] for part in read(mnist, "t10k")), cpu)
    with h5py.File(ROOT / "data" / "digits-10k.h5") as file:  # evaluated only, never trained on
        uci = Split.of(file["x"][:limit], file["y"][:limit], cpu)
    provenance: dict[str, str | int | float] = {
        "who": "lenetgpu project, scripts/train.py",
        "data": "MNIST training images 0..54999; UCI handwritten digits 1287..1796 of load_digits",
        "date": datetime.date.today().isoformat(), "seed": seed, "student": best,
        "epochs": epochs, "teachers": TEACHERS, "teacher_epochs": TEACHER_EPOCHS,
        "mixing": MIXING, "temperature": TEMPERATURE, "strength": 1.0,
        "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else "CPU",
        "seconds": round(time.perf_counter() - start), "validation_accuracy": scores[best][0],
        "mnist_test_accuracy": evaluate(small[best], test)[0],
        "digits_10k_accuracy": evaluate(small[best], uci)[0],
    }  # fmt: skip
    write_weights(out, small[best].arrays(), provenance)
    for name, value in provenance.items():
        click.echo(f"{name}: {value}")


if __name__ == "__main__":
    main()
