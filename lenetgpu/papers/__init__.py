"""Data from the source texts: shapes, figures, ladders."""
