"""Parts of a page that a script writes: between `<!-- begin:NAME -->` and `<!-- end:NAME -->`."""

from __future__ import annotations

import click


def filled(page: str, text: str, name: str, content: str) -> str:
    """`text` with `content` as the part of that name, which has to be there once.

    ClickException naming `page` where it is not.
    """
    begin, end = f"<!-- begin:{name} -->", f"<!-- end:{name} -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    if text.count(begin) != 1 or rest.count(end) != 1:
        raise click.ClickException(f"{page}: expected {begin} and {end} once each")
    return f"{before}{begin}\n{content}\n{end}{after}"
