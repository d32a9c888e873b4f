"""Leaderboards as files: CSV, JSON and Parquet for programs, Markdown and XLSX for people.

    write_leaderboards(leaderboards, "board.md", "md")

CSV, JSON and Parquet hold one table: the leaderboards, or their history. The others also hold both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2l.common.files import no_nan, output_path
from p2l.common.spreadsheets import Sheet, column_of, frame_to_cells, write_sheets
from p2l.common.text_table import markdown_table, markdown_text
from p2l.leaderboard.board import Named, TextTable, effect_rows, table_of, to_score
from p2l.leaderboard.history import History
from p2l.leaderboard.history_report import history_table

if TYPE_CHECKING:
    import pandas as pd

    from p2l.leaderboard.covariates import Effect

_HISTORY = ["period", "model", "rank", "score", "lower", "upper", "votes", "coef", "coef_lower", "coef_upper"]
_FORMS = {"win_rate": "0.0%", **dict.fromkeys(("score", "lower", "upper"), "0.0")}
_FACTS = ("likelihood", "eta", "gamma", "loss", "level", "not_counted", "prior_sd")


@dataclass(frozen=True)
class Leaderboards:
    """What one run of `p2l leaderboard` computes.

    Attributes:
        title: of documents that hold it.
        unit: what the sizes of groups count: votes or prompts.
        boards: that of everything first, then those of groups; empty where a history was asked for alone.
        history: of the leaderboard of all votes, or None.
        min_votes: models with fewer votes are left out.
    """

    title: str
    unit: str
    boards: Sequence[Named]
    history: History | None = None
    min_votes: int = 0


def write_leaderboards(leaderboards: Leaderboards, path: str, kind: str) -> None:
    """Write leaderboards as `csv`, `json`, `parquet`, `md` or `xlsx`, whole or not at all; `-` is stdout."""
    with output_path(path) as temporary:
        if kind == "xlsx":
            title, about = leaderboards.title, "Leaderboards by p2l. Score: 1000 + 400 / ln(10) x coef."
            write_sheets(temporary, list(_sheets(leaderboards)), title=title, about=about)
        elif kind in ("csv", "parquet"):
            write_frame(_frame(leaderboards), temporary, kind)
        else:
            temporary.write_text(_text(leaderboards, kind), encoding="utf-8")


def _text(leaderboards: Leaderboards, kind: str) -> str:
    if kind == "md":
        return "\n".join(_markdown(leaderboards)) + "\n"
    content = _history_object(leaderboards) if leaderboards.history else _board_objects(leaderboards)
    return json.dumps(no_nan(content), indent=1, ensure_ascii=False) + "\n"


def write_frame(frame: pd.DataFrame, path: Path, kind: str) -> None:
    """Write a table into a file as `csv`, its texts safe in spreadsheets, or as `parquet`."""
    if kind == "csv":
        frame_to_cells(frame).to_csv(path, index=False)
    else:
        frame.to_parquet(path, index=False)


# Tables for programs.


def _frame(leaderboards: Leaderboards) -> pd.DataFrame:
    """Return the one table of a file that holds no other."""
    if leaderboards.history is not None:
        return history_frame(leaderboards.history, min_votes=leaderboards.min_votes)
    return _board_frame(leaderboards)


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
    """Return an object for each leaderboard, with its likelihood, effects of covariates, notes and models."""
    return [
        {"by": named.by, "group": named.group, "size": named.size}
        | {name: getattr(named.board, name) for name in _FACTS}
        | {"effects": [effect._asdict() for effect in named.board.effects]}
        | {"notes": list(named.board.notes)}
        | {"models": named.board.to_frame(min_votes=leaderboards.min_votes).to_dict("records")}
        for named in leaderboards.boards
    ]


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
    for named in leaderboards.boards:
        table = table_of(named, unit=leaderboards.unit, min_votes=leaderboards.min_votes)
        yield from _section(table, named.board.effects, named.board.level)
    if leaderboards.history is not None:
        history = leaderboards.history
        table = history_table(history, min_votes=leaderboards.min_votes)
        yield from _section(table, history.newest.effects, history.newest.level)


def _section(table: TextTable, effects: Sequence[Effect], level: float) -> Iterator[str]:
    yield from ("", f"## {markdown_text(table.heading)}", "", f"{markdown_text(table.facts)}.", "")
    yield from markdown_table(table.header, table.rows, left={table.header.index("model")})
    if table.notes:
        yield from ("", *(f"- {markdown_text(note)}" for note in table.notes))
    if effects:
        yield from ("", *markdown_table(*effect_rows(effects, level), left={0, 1}))


def _sheets(leaderboards: Leaderboards) -> Iterator[Sheet]:
    boards, history = leaderboards.boards, leaderboards.history
    if boards:
        yield _sheet("Leaderboards", _board_frame(leaderboards))
    if len(boards) > 1:
        yield _side_by_side(leaderboards)
    if history is not None:
        yield _sheet("History", history_frame(history, min_votes=leaderboards.min_votes))
    named = [(one.title, one.size, one.board) for one in boards]
    named += [] if history is None else [(f"{history.over.text} to {history.periods[-1].label}", 0, history.newest)]
    effects = [(title, effect) for title, _, board in named for effect in board.effects]
    if effects:
        fields = ("name", "role", "coef", "lower", "upper")
        columns = [column_of(name, (getattr(effect, name) for _, effect in effects)) for name in fields]
        yield Sheet("Covariates", [column_of("leaderboard", (title for title, _ in effects)), *columns])
    about = [column_of(name, (getattr(board, name) for _, _, board in named)) for name in _FACTS]
    notes = column_of("notes", (" ".join(board.notes) for _, _, board in named))
    sizes = column_of(leaderboards.unit, (size or None for _, size, _ in named))
    yield Sheet("About", [column_of("leaderboard", (title for title, _, _ in named)), sizes, *about, notes])


def _sheet(name: str, frame: pd.DataFrame) -> Sheet:
    titles = [str(title) for title in frame.columns]
    return Sheet(name, [column_of(title, frame[title].tolist(), _FORMS.get(title, "")) for title in titles])


def _side_by_side(leaderboards: Leaderboards) -> Sheet:
    """Return the score of each model in each group."""
    frame = leaderboards.boards[0].board.to_frame(min_votes=leaderboards.min_votes)
    models = frame["model"].tolist()
    columns = [column_of("model", models)]
    for named in leaderboards.boards:
        scores = dict(zip(named.board.models, to_score(named.board.coefs).tolist(), strict=True))
        columns.append(column_of(named.title, [scores.get(model) for model in models], _FORMS["score"]))
    return Sheet("Side by side", columns)
