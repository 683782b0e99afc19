"""Convolutions of elsewhere: benchdnn's and MIOpenDriver's lines, and those of ONNX models."""
