"""What stands above mistakes that are shown: how many, of what run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lenetgpu.lab.show.infer import shown
from lenetgpu.lab.show.mistakes.lines import lead, title
from lenetgpu.lab.show.page.base import Head
from lenetgpu.measure.document import head

if TYPE_CHECKING:
    from lenetgpu.measure.outcome import Outcome


def told(outcome: Outcome) -> Head:
    """The head of a page or picture about the mistakes of a run."""
    said = head("infer", outcome.gpu)
    facts = {
        "data": shown(outcome.data),
        "weights": shown(outcome.weights.source),
        "plan": f"{outcome.plan.name}, {outcome.plan.precision}",
    }
    if outcome.done < outcome.asked:
        facts["interrupted"] = f"{outcome.done:,} of {outcome.asked:,} images read"
    return Head(
        title=title(outcome.counts),
        lead=lead(outcome.counts),
        device=said["device"]["name"],
        date=said["date"],
        commit=said["commit"],
        facts=facts,
    )
