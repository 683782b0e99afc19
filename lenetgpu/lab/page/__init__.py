"""Self-contained HTML pages: one file, no network requests, light and dark themes."""
