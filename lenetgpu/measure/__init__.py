"""How long, and how sure."""
