"""Instruments: measure, check, compare, report."""
