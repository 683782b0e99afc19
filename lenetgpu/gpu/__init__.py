"""The GPU: selection, kernel compilation, launches, memory."""
