"""Mistakes shown: lines of the summary, a list, a picture; the page is in show/page/."""
