"""Convolutions from other tools: lines of benchdnn and MIOpenDriver, and ONNX models."""
