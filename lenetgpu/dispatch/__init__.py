"""Dispatch of kernels and plans: candidates, a cost model or measured times, and the choice."""
