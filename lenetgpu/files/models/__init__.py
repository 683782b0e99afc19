"""Weights in the forms of others: safetensors, PyTorch's state_dict, ONNX, .npz; a file a form.

All of them are untrusted. A file is read whole, at most `loaded.MOST_BYTES`, and nothing that it
names is opened. `files/weights.py` is who asks for them.
"""
