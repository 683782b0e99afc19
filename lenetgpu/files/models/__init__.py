"""Weights in the forms of others: safetensors, PyTorch's state_dict, ONNX, .npz; all untrusted."""
