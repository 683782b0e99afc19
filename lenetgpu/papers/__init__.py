"""What the source texts say: shapes, figures, ladders."""
