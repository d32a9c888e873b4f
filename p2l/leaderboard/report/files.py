"""Leaderboards as text for a terminal and as files: CSV, JSON and Parquet for programs, Markdown and XLSX for people.

CSV, JSON and Parquet hold one table: the leaderboards, or their history. The others also hold both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from p2l.common.files import no_nan, output_path
from p2l.common.report.tables import Table
from p2l.common.report.text import notes_text, table_markdown, table_text
from p2l.common.spreadsheets import Sheet, column_of, frame_to_cells, write_sheets
from p2l.common.text_table import markdown_text
from p2l.leaderboard.board import Leaderboard, Named, to_score
from p2l.leaderboard.history import History
from p2l.leaderboard.report.provenance import META
from p2l.leaderboard.report.ranking import Leaderboards, Ranking
from p2l.leaderboard.report.tables import board_table, effect_table, history_table

if TYPE_CHECKING:
    import pandas as pd

PRINTED_GROUPS = 20
"""Groups whose tables a terminal shows."""
_HISTORY = ["period", "model", "rank", "score", "lower", "upper", "votes", "coef", "coef_lower", "coef_upper"]
_FORMS = {"win_rate": "0.0%", **dict.fromkeys(("score", "lower", "upper"), "0.0")}
_FACTS = ("likelihood", "eta", "gamma", "loss", "level", "intervals_of", "not_counted", "prior_sd", "familiarity")


class _Listing(NamedTuple):
    """A table of models with what stands around it."""

    heading: str
    size: str
    fitted: str
    table: Table
    notes: tuple[str, ...]
    board: Leaderboard


def _listings(leaderboards: Leaderboards, groups: int | None = None) -> Iterator[_Listing]:
    """Yield the leaderboard of everything and those of the first `groups` groups, then the history."""
    boards, history, min_votes = leaderboards.boards, leaderboards.history, leaderboards.min_votes
    for named in boards if groups is None else boards[: groups + 1]:
        table = board_table(Ranking.of(named.board, min_votes))
        yield _Listing(
            named.title, _size(named, leaderboards.unit), _fitted(named.board), table, named.board.notes, named.board
        )
    if history is not None:
        newest = history.periods[-1]
        table = history_table(history, Ranking.of(newest.board, min_votes))
        heading = f"over {history.over.text} ({history.mode}), {history.periods[0].label} to {newest.label}"
        votes = sum(period.votes for period in history.periods)
        periods = f"{len(history.periods)} periods with votes" if len(history.periods) > 1 else "1 period"
        size = f"{periods}, {votes:,} votes, {len(history.models)} models; the table is of {newest.label}"
        yield _Listing(heading, size, f"likelihood {newest.board.likelihood}", table, history.notes, newest.board)


def leaderboards_text(leaderboards: Leaderboards, top: int | None = None, *, verbose: bool = False) -> str:
    """Return what a terminal shows: the `top` best models of all votes, of the first groups and of the history.

    `verbose` adds what was fitted. A note that all groups have stands once, below the last table.
    """
    listings = list(_listings(leaderboards, PRINTED_GROUPS))
    groups = [set(named.board.notes) for named in leaderboards.boards if named.by and named.by != "prompt"]
    common = set.intersection(*groups) if len(groups) > 1 else set()
    texts = []
    for listing in listings:
        size = f"{listing.size}, {listing.fitted}" if verbose else listing.size
        lines = [f"{listing.heading}: {size}", "", *table_text(listing.table, top)]
        lines += notes_text([note for note in listing.notes if note not in common])
        if listing.board.effects:
            lines += ["", *table_text(effect_table(listing.board.effects, listing.board.level))]
        texts.append("\n".join(lines))
    if common:
        texts.append("\n".join(notes_text([f"Each group: {note}" for note in sorted(common)])))
    return "\n\n".join(texts)


def _size(named: Named, unit: str) -> str:
    """Return of how many votes or prompts, and models, a leaderboard is."""
    board = named.board
    facts = []
    if (named.by, named.size, unit) != ("prompt", 1, "prompts"):  # which goes without saying
        facts.append(f"{named.size:,} {unit.removesuffix('s') if named.size == 1 else unit}")
    left_out = f" ({board.not_counted:,} ties left out)" if board.not_counted else ""
    return ", ".join([*facts, f"{len(board.models)} models{left_out}"])


def _fitted(board: Leaderboard) -> str:
    """Return what was fitted: likelihood, loss, the tie parameter and the prior."""
    facts = [f"likelihood {board.likelihood}"]
    facts += [f"loss {board.loss:.4f}"] if math.isfinite(board.loss) else []
    facts += [] if board.eta is None else [f"eta {board.eta:.3f}"]
    facts += [] if board.prior_sd is None else [f"prior sd {board.prior_sd:.2g}"]
    return ", ".join(facts)


def write_leaderboards(leaderboards: Leaderboards, path: str, kind: str) -> None:
    """Write leaderboards as `csv`, `json`, `parquet`, `md` or `xlsx`, whole or not at all; `-` is stdout."""
    with output_path(path) as temporary:
        if kind == "xlsx":
            title, about = leaderboards.title, "Leaderboards by p2l. Score: 1000 + 400 / ln(10) x coef."
            write_sheets(temporary, list(_sheets(leaderboards)), title=title, about=about)
        elif kind in ("csv", "parquet"):
            history, min_votes = leaderboards.history, leaderboards.min_votes
            frame = history_frame(history, min_votes=min_votes) if history else _board_frame(leaderboards)
            write_frame(frame, temporary, kind)
        elif kind == "md":
            temporary.write_text("\n".join(_markdown(leaderboards)) + "\n", encoding="utf-8")
        else:
            temporary.write_text(leaderboards_json(leaderboards), encoding="utf-8")


def leaderboards_json(leaderboards: Leaderboards) -> str:
    """Return leaderboards, or their history, as JSON with where they come from."""
    content: Any = _history_object(leaderboards) if leaderboards.history else _board_objects(leaderboards)
    if leaderboards.provenance is not None:
        stated = {META: leaderboards.provenance.to_dict()}
        content = content | stated if isinstance(content, dict) else [content[0] | stated, *content[1:]]
    return json.dumps(no_nan(content), indent=1, ensure_ascii=False) + "\n"


def write_frame(frame: pd.DataFrame, path: Path, kind: str) -> None:
    """Write a table into a file as `csv`, its texts safe in spreadsheets, or as `parquet`."""
    if kind == "csv":
        frame_to_cells(frame).to_csv(path, index=False)
    else:
        frame.to_parquet(path, index=False)


# Tables for programs.


def _board_frame(leaderboards: Leaderboards) -> pd.DataFrame:
    """Return one row for each model of each leaderboard, with its group in front."""
    import pandas as pd

    frames = []
    for named in leaderboards.boards:
        frame = named.board.to_frame(min_votes=leaderboards.min_votes)
        frame.insert(0, "group", named.group)
        frame.insert(0, "by", named.by)
        frames.append(frame)
    table: pd.DataFrame = pd.concat(frames, ignore_index=True)
    return table


def history_frame(history: History, *, min_votes: int = 0) -> pd.DataFrame:
    """Return one row for each period and model, the oldest period first and the best model first.

    Columns: period, model, rank, score, lower, upper, votes (that the leaderboard of the period counts for the model),
    coef, coef_lower, coef_upper.
    """
    import pandas as pd

    frames = []
    for period in history.periods:
        frame = period.board.to_frame(min_votes=min_votes)
        frame.insert(0, "period", period.label)
        frames.append(frame[_HISTORY])
    table: pd.DataFrame = pd.concat(frames, ignore_index=True)
    return table


def _board_objects(leaderboards: Leaderboards) -> list[dict[str, Any]]:
    """Return an object for each leaderboard, with its likelihood, effects, certificate, notes and models."""
    return [
        {"by": named.by, "group": named.group, "size": named.size}
        | {name: getattr(named.board, name) for name in _FACTS}
        | {"effects": [effect._asdict() for effect in named.board.effects]}
        | {"certificate": _certificate_object(named.board)}
        | {"notes": list(named.board.notes)}
        | {"models": named.board.to_frame(min_votes=leaderboards.min_votes).to_dict("records")}
        for named in leaderboards.boards
    ]


def _certificate_object(board: Leaderboard) -> dict[str, Any] | None:
    """Return how few votes decide the first place, and which votes they are; those of ranks stand with the models."""
    found = board.certificate
    if found is None:
        return None
    changes: dict[str, Any] = {}
    for name, change in (("removed", found.removed), ("reversed", found.reversed)):
        changes[name] = None
        if change is not None:
            votes = [kind._asdict() for kind in change.votes]
            changes[name] = {"number": change.number, "leader": change.leader, "votes": votes}
    return {"total": found.total, "first": found.first, **changes}


def _history_object(leaderboards: Leaderboards) -> dict[str, Any]:
    """Return over, mode, likelihood, level, notes, and the periods with votes, loss, eta, effects and models."""
    history = leaderboards.history
    assert history is not None
    frame = history_frame(history, min_votes=leaderboards.min_votes)
    facts = {"over": history.over.text, "mode": history.mode, "likelihood": history.newest.likelihood}
    periods = []
    for period in history.periods:
        models = frame[frame["period"] == period.label].drop(columns="period").to_dict("records")
        about = {"period": period.label, "votes": period.votes, "loss": period.board.loss, "eta": period.board.eta}
        effects = [effect._asdict() for effect in period.board.effects]
        periods.append({**about, "effects": effects, "models": models})
    return facts | {"level": history.newest.level, "notes": list(history.notes), "periods": periods}


# Documents for people.


def _markdown(leaderboards: Leaderboards) -> Iterator[str]:
    yield f"# {markdown_text(leaderboards.title)}"
    for listing in _listings(leaderboards):
        yield from (
            "",
            f"## {markdown_text(listing.heading)}",
            "",
            f"{markdown_text(listing.size)}, {markdown_text(listing.fitted)}.",
            "",
        )
        yield from table_markdown(listing.table)
        if listing.notes:
            yield from ("", *(f"- {markdown_text(note)}" for note in listing.notes))
        if listing.board.effects:
            yield from ("", *table_markdown(effect_table(listing.board.effects, listing.board.level)))


def _sheets(leaderboards: Leaderboards) -> Iterator[Sheet]:
    boards, history = leaderboards.boards, leaderboards.history
    if boards:
        yield _sheet("Leaderboards", _board_frame(leaderboards))
    if len(boards) > 1:
        models = boards[0].board.to_frame(min_votes=leaderboards.min_votes)["model"].tolist()
        beside = [column_of("model", models)]
        for named in boards:
            scores = dict(zip(named.board.models, to_score(named.board.coefs).tolist(), strict=True))
            beside.append(column_of(named.title, [scores.get(model) for model in models], _FORMS["score"]))
        yield Sheet("Side by side", beside)
    if history is not None:
        yield _sheet("History", history_frame(history, min_votes=leaderboards.min_votes))
    rows = [(named.title, named.size, named.board) for named in boards]
    rows += [] if history is None else [(f"{history.over.text} to {history.periods[-1].label}", 0, history.newest)]
    effects = [(title, effect) for title, _, board in rows for effect in board.effects]
    if effects:
        fields = ("name", "role", "coef", "lower", "upper")
        columns = [column_of(name, (getattr(effect, name) for _, effect in effects)) for name in fields]
        yield Sheet("Covariates", [column_of("leaderboard", (title for title, _ in effects)), *columns])
    about = [column_of(name, (getattr(board, name) for _, _, board in rows)) for name in _FACTS]
    notes = column_of("notes", (" ".join(board.notes) for _, _, board in rows))
    sizes = column_of(leaderboards.unit, (size or None for _, size, _ in rows))
    yield Sheet("About", [column_of("leaderboard", (title for title, _, _ in rows)), sizes, *about, notes])


def _sheet(name: str, frame: pd.DataFrame) -> Sheet:
    titles = [str(title) for title in frame.columns]
    return Sheet(name, [column_of(title, frame[title].tolist(), _FORMS.get(title, "")) for title in titles])
