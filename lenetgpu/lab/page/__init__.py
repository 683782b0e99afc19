"""HTML pages that stand alone: one file, nothing loaded from anywhere, light and dark."""
