"""Results for people and for files: tables, summaries, pictures, progress."""
