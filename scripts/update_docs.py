"""Write the generated parts of README.md and docs/ between their markers, from docs/measured/.

A part stands between `<!-- begin:NAME -->` and `<!-- end:NAME -->`, a figure in a sentence between
`<!-- figure:NAME -->` and `<!-- end -->` (quoted.py).

`--check` writes nothing and exits with 1 where a page is not what it would write of the variants
that it names; a variant that it does not name yet makes no page stale.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import choice_tables
import click
import conv_tables
import counter_tables
import course_tables
import host_tables
import idea_tables
import instrument_table
import ladder
import matrix_tables
import peer_tables
import plan_tables
import quoted
import sanitize_tables
import scale_tables
import shares_tables
import stream_tables
import suite_tables
import weights_table
from markers import filled

ROOT = Path(__file__).resolve().parent.parent
CONTENTS = "contents"
SECTIONS: dict[str, Callable[[], str]] = {
    **peer_tables.SECTIONS,
    **host_tables.SECTIONS,
    **plan_tables.SECTIONS,
    **course_tables.SECTIONS,
    **counter_tables.SECTIONS,
    **conv_tables.SECTIONS,
    **conv_tables.BLOCKS,
    **choice_tables.BLOCKS,
    **suite_tables.BLOCKS,
    **instrument_table.SECTIONS,
    **stream_tables.SECTIONS,
    **weights_table.SECTIONS,
    **matrix_tables.SECTIONS,
    **idea_tables.SECTIONS,
    **shares_tables.SECTIONS,
    **sanitize_tables.SECTIONS,
    **scale_tables.SECTIONS,
}
FRONT = ("infer", "peers")
PAGES = {
    "README.md": FRONT,
    "docs/measured.md": (
        *(name for name in (*peer_tables.SECTIONS, *plan_tables.SECTIONS) if name not in FRONT),
        *host_tables.SECTIONS,
        *course_tables.SECTIONS,
        *counter_tables.SECTIONS,
        *conv_tables.SECTIONS,
        *instrument_table.SECTIONS,
        *stream_tables.SECTIONS,
        *sanitize_tables.SECTIONS,
        CONTENTS,
    ),
    "docs/scale.md": tuple(scale_tables.SECTIONS),
    "docs/weights.md": tuple(weights_table.SECTIONS),
    "docs/matrix.md": tuple(matrix_tables.SECTIONS),
    "docs/old-ideas.md": tuple(idea_tables.SECTIONS),
    "docs/ladder.md": tuple(ladder.sections()),
    "docs/convnet2.md": tuple(shares_tables.SECTIONS),
    "docs/convolutions.md": (*suite_tables.BLOCKS, *choice_tables.BLOCKS, *conv_tables.BLOCKS),
}
# measured, and too long for a page to read: docs/measured/ has them
UNSHOWN = {"counters", "course", "convnet2-steps", "own-variants", "model-misses"}
PAGES = {page: tuple(n for n in names if n not in UNSHOWN) for page, names in PAGES.items()}


def anchor(heading: str) -> str:
    """The fragment that a heading is reached by."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.replace(" ", "-")


def headings(text: str) -> Iterator[tuple[int, str]]:
    """(level, words) of the headings of `text` below its title, code left out."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for marks, words in re.findall(r"^(##+) (.+)$", text, flags=re.MULTILINE):
        yield len(marks), words


def contents(text: str) -> str:
    """A table of contents of `text`."""
    return "\n".join(
        f"{'  ' * (level - 2)}- [{words}](#{anchor(words)})" for level, words in headings(text)
    )


def updated(path: str, text: str, named_only: bool = False) -> str:
    """`text` of the page at `path` with every part between its markers written anew.

    `named_only` leaves out variants that it does not name.
    """
    makers = SECTIONS | ladder.sections(
        lambda variant: not named_only or f"`{variant.full_name}`" in text
    )
    for name in PAGES[path]:
        made = contents(text) if name == CONTENTS else makers[name]()
        text = filled(path, text, name, made)
    return quoted.filled(text)


@click.command()
@click.option("--check", is_flag=True, help="exit with 1 where a page is stale")
def main(check: bool) -> None:
    """Write the generated parts of README.md and docs/, and the figures that their prose quotes."""
    stale = []
    for path in PAGES:
        text = (ROOT / path).read_text()
        new = updated(path, text, named_only=check)
        if new != text:
            stale.append(path)
            if not check:
                (ROOT / path).write_text(new)
    for path in stale:
        click.echo(f"{path} is stale: run scripts/update_docs.py" if check else f"{path} written")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
