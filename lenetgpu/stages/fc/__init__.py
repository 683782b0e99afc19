"""Fully connected layers, with ReLU if the stage has one; one file per family."""
