"""A fresh PyTorch process: the network's weights, the digits, one batch, labels on the host.

Nothing of lenetgpu is imported. Prints how many of how many labels are right.
"""

from __future__ import annotations

import sys

import h5py
import numpy as np
import torch
import torch.nn.functional as F


def main(device: str, weights: str, data: str) -> None:
    """Label the digits of `data` once on `device`, "cuda" or "cpu"."""
    with h5py.File(weights) as file:
        held = {
            name: torch.from_numpy(file[name][...]) for name in ("conv1", "conv2", "fc1", "fc2")
        }
    with h5py.File(data) as file:
        images, labels = torch.from_numpy(file["x"][...]), np.asarray(file["y"][...])
    w = {name: tensor.to(device) for name, tensor in held.items()}
    with torch.inference_mode():
        x = images.to(device).reshape(-1, 1, 28, 28).float() / 255
        for name in ("conv1", "conv2"):
            x = F.avg_pool2d(F.relu(F.conv2d(x, w[name].permute(3, 2, 0, 1).contiguous())), 2)
        x = F.relu(x.permute(0, 2, 3, 1).reshape(len(x), -1) @ w["fc1"]) @ w["fc2"]
        found = x.argmax(1).cpu().numpy()
    truth = labels.argmax(1) if labels.ndim > 1 else labels
    print(f"{int((found == truth).sum())} of {len(found)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
