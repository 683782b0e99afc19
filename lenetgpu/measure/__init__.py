"""Timing, statistics and hardware counters."""
