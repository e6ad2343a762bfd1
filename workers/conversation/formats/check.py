"""Everything there is to know of one template: its format, and its round trips, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....protocol.errors import PronkError
from ..analysis import BOS, EOS, ways_of
from ..gotemplate import GoTemplateError
from ..jinja import Broken, Complaint
from ..rendering import GoRendering, Rendering
from ..turns import Turn
from .derive import derive
from .description import Format
from .roundtrip import CASES, TOOLS, Outcome, Result, round_trip
from .said import Call
from .writing import write_answer


def check_template(order: dict[str, Any]) -> dict[str, Any]:
    """What `pronk template check` shows; `broken` and a reason where there is nothing to show.

    `order` has the template's `source`, and perhaps the texts `bos` and `eos` of the model's
    beginning and end tokens.
    """
    source = order["source"]
    try:
        _, ways = ways_of(source, bos=order.get("bos") or BOS, eos=order.get("eos") or EOS)
    except (GoTemplateError, Broken) as error:
        return {"broken": str(error)}
    if reason := _refuses_everything(ways[0]):
        return {"broken": reason}
    form = derive(*ways)
    results = round_trip(form, *ways)
    return {
        "language": "go" if isinstance(ways[0], GoRendering) else "jinja",
        "capabilities": list(form.capabilities),
        "format": form.to_json(),
        "written": _written(form),
        "unread": _is_unread(form, results),
        "cases": [
            {"case": each.case, "outcome": each.outcome.value, "reason": each.reason}
            for each in results
        ],
        "passed": all(each.outcome is not Outcome.FAILED for each in results),
    }


def _refuses_everything(rendering: Rendering) -> str:
    """Why not even one question can be rendered; empty where it can."""
    for tools in ((), TOOLS):
        try:
            rendering.render([Turn("user", "What is to be done?")], tools=tools)
            return ""
        except (PronkError, GoTemplateError, Complaint, Broken) as error:
            reason = str(error)
    return reason


def _is_unread(form: Format, results: Sequence[Result]) -> bool:
    """Whether the template writes calls, and it is not known how they could be read."""
    calls = {case.name for case in CASES if case.calls}
    written = any(each.case in calls and each.outcome is not Outcome.LEFT_OUT for each in results)
    return written and not (form.calls or form.harmony)


def _written(form: Format) -> str:
    """An answer in this format, for a person to look at."""
    if form.harmony:
        return ""
    calls = [Call("NAME", {"KEY": "VALUE", "OTHER": 1}, "ID")]
    if form.calls and form.calls.several:
        calls.append(Call("NAME", {}, "ID"))
    content = "" if form.calls and not form.mixed else "TEXT"
    return write_answer(form, content, "REASONING", calls)
