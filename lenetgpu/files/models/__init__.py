"""Weights in the formats of other tools: safetensors, PyTorch, ONNX, .npz. All are untrusted."""
