"""Leaderboards over time, from votes in memory."""

from __future__ import annotations

from datetime import datetime, timezone

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2l import likelihood as likelihoods
from p2l.common.errors import ConfigError, InputError
from p2l.leaderboard import fit, to_score
from p2l.leaderboard.history import fit_history, parse_over, times_of
from p2l.leaderboard.report import Leaderboards
from p2l.leaderboard.report.files import history_frame, leaderboards_text

DAY = 86_400.0
START = datetime(2025, 1, 1, tzinfo=timezone.utc).timestamp()
TRUTH = np.array([0.9, 0.4, 0.0, -0.3, -1.0])
NAMES = ["ant", "bee", "cat", "dog", "eel"]


def seconds(text):
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()


def draw(number, seed=0, days=120.0, truth=TRUTH, members=None):
    """Votes between random pairs of members, over some days: codes and times."""
    rng = np.random.default_rng(seed)
    members = np.arange(len(truth)) if members is None else np.asarray(members)
    first = rng.integers(0, len(members), number)
    second = (first + rng.integers(1, len(members), number)) % len(members)
    a, b = members[first], members[second]
    probs = likelihoods.get("grk").probs(truth[a], truth[b], np.asarray(-0.5))
    won = np.minimum((rng.random(number)[:, None] > probs.cumsum(axis=1)).sum(axis=1), 3)
    return a, b, won, START + DAY * days * rng.random(number)


@pytest.mark.parametrize("likelihood", ["bt", "bt-tie", "rk", "rk-reparam", "grk", "ba"])
def test_the_last_cumulative_leaderboard_is_that_of_all_votes(likelihood):
    a, b, won, times = draw(900)
    history = fit_history(a, b, won, times, models=NAMES, likelihood=likelihood)
    whole = fit(a, b, won, models=NAMES, likelihood=likelihood)
    assert [period.label for period in history.periods] == ["2025-01", "2025-02", "2025-03", "2025-04"]
    for field in ("coefs", "lower", "upper"):
        np.testing.assert_allclose(getattr(history.newest, field), getattr(whole, field), atol=1e-6)
    assert history.newest.votes.tolist() == whole.votes.tolist()
    assert sum(period.votes for period in history.periods) == 900


@pytest.mark.parametrize("likelihood", ["bt", "grk"])
def test_every_cumulative_leaderboard_has_the_differences_and_intervals_of_a_fit_from_scratch(likelihood):
    a, b, won, times = draw(900)
    history = fit_history(a, b, won, times, models=NAMES, likelihood=likelihood)
    for period, end in zip(history.periods, ("2025-02-01", "2025-03-01", "2025-04-01", "2025-05-01"), strict=True):
        until = times < seconds(end)
        whole = fit(a[until], b[until], won[until], models=NAMES, likelihood=likelihood)
        ours, theirs = (board.coefs - board.coefs.mean() * (likelihood == "bt") for board in (period.board, whole))
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
        np.testing.assert_allclose(period.board.upper - period.board.coefs, whole.upper - whole.coefs, atol=1e-6)


@settings(max_examples=8)
@given(seed=st.integers(0, 99), mode=st.sampled_from(["cumulative", "alone"]))
def test_the_order_of_the_votes_and_of_the_sides_plays_no_part(seed, mode):
    a, b, won, times = draw(300, seed=seed)
    rng = np.random.default_rng(seed)
    order, turned = rng.permutation(300), rng.random(300) < 0.5
    swapped = np.where((won < 2) & turned, 1 - won, won)
    sides = np.where(turned, b, a), np.where(turned, a, b)
    options = {"models": NAMES, "mode": mode, "over": "2weeks"}
    first = fit_history(a, b, won, times, **options)
    second = fit_history(sides[0][order], sides[1][order], swapped[order], times[order], **options)
    np.testing.assert_allclose(first.table()[1], second.table()[1], atol=1e-7)


def test_a_strong_newcomer_does_not_move_the_others():
    old = draw(20_000, truth=np.append(TRUTH, 3.0), members=range(5))
    new = draw(10_000, seed=1, truth=np.append(TRUTH, 3.0))
    columns = [np.concatenate(pair) for pair in zip(old, (*new[:3], new[3] + 120 * DAY), strict=True)]
    history = fit_history(*columns, models=[*NAMES, "fox"], over="month", likelihood="bt", intervals=None)
    names, coefs = history.table()
    known = [names.index(name) for name in NAMES]
    weights = history.periods[3].board.votes
    held = [np.average(row, weights=weights) for row in coefs[3:, known]]
    np.testing.assert_allclose(held, held[0], atol=0.02)
    assert np.isnan(coefs[0, names.index("fox")])
    assert history.newest.coefs[:5].mean() < -0.3  # how far a mean of zero over all models would have moved them


def test_parts_that_had_not_met_are_put_where_later_votes_have_them():
    truth = np.array([1.0, 0.8, -0.8, -1.0])
    early = [draw(4000, seed=seed, days=30, truth=truth, members=pair) for seed, pair in enumerate([(0, 1), (2, 3)])]
    late = draw(8000, seed=2, days=28, truth=truth)
    parts = [*early, (*late[:3], late[3] + 31 * DAY)]
    history = fit_history(*(np.concatenate(column) for column in zip(*parts, strict=True)), models=list("abcd"))
    assert history.periods[0].board.components.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(history.periods[0].board.coefs, history.newest.coefs, atol=0.15)
    assert any("2025-01" in note and "had not met" in note for note in history.notes)


def test_a_sparse_period_alone_does_not_jump_and_a_rich_one_follows_its_votes():
    a, b, won, times = draw(30_000, days=31)
    few = np.array([0, 0]), np.array([4, 4]), np.array([1, 1]), np.array([START + 40 * DAY] * 2)
    other = draw(30_000, seed=5, days=28, truth=TRUTH[::-1])
    columns = [
        np.concatenate(part) for part in zip((a, b, won, times), few, (*other[:3], other[3] + 60 * DAY), strict=True)
    ]
    history = fit_history(*columns, models=NAMES, mode="alone")
    overall = fit(*columns[:3], models=NAMES)
    board = history.periods[1].board
    sparse = dict(zip(board.models, board.coefs.tolist(), strict=True))
    assert abs(sparse["ant"] - overall.coefs[0]) < 0.3
    for period, votes in ((0, (a, b, won)), (2, other[:3])):
        np.testing.assert_allclose(history.periods[period].board.coefs, fit(*votes, models=NAMES).coefs, atol=0.03)
    free = fit_history(*columns, models=NAMES, mode="alone", shrink=np.inf)
    assert abs(free.table()[1][1, 0] - overall.coefs[0]) > 1.0


def test_gaps_and_periods_whose_votes_do_not_count_are_said():
    a, b, won, times = draw(400, days=31)
    ties = np.array([0, 1]), np.array([1, 2]), np.array([2, 2]), np.array([START + 65 * DAY] * 2)
    late = (a, b, won, times + 150 * DAY)
    columns = [np.concatenate(part) for part in zip((a, b, won, times), ties, late, strict=True)]
    history = fit_history(*columns, models=NAMES, likelihood="bt", mode="alone", intervals=None)
    assert [history.periods[0].label, history.periods[-1].label] == ["2025-01", "2025-06"]
    text = " ".join(history.notes)
    assert "No votes in 2025-02, 2025-04" in text
    assert "in 2025-03: left out" in text
    assert "2025-03" not in set(history_frame(history)["period"])


def test_weights_count():
    a, b, won, times = draw(600)
    weights = np.random.default_rng(0).integers(0, 3, 600).astype(float)
    history = fit_history(a, b, won, times, models=NAMES, weights=weights)
    whole = fit(a, b, won, models=NAMES, weights=weights)
    np.testing.assert_allclose(history.newest.coefs, whole.coefs, atol=1e-6)
    np.testing.assert_allclose(history.newest.upper, whole.upper, atol=1e-6)


def test_the_table_shows_rank_changes_newcomers_and_earlier_scores():
    first = draw(3000, days=31, truth=np.array([1.0, 0.0, -1.0, 0, 0]), members=range(3))
    second = draw(9000, seed=1, days=28, truth=np.array([-1.0, 0.0, 1.0, 3.0, 0]), members=range(4))
    columns = [np.concatenate(pair) for pair in zip(first, (*second[:3], second[3] + 31 * DAY), strict=True)]
    history = fit_history(*columns, models=NAMES)
    lines = [line.split() for line in leaderboards_text(Leaderboards("", "votes", [], history)).splitlines()]
    rows = {line[2]: line for line in lines if len(line) > 3 and line[2] in NAMES}
    assert (rows["dog"][1], rows["ant"][1], rows["cat"][1]) == ("new", "-3", "+1")
    earlier = dict(zip(history.periods[0].board.models, to_score(history.periods[0].board.coefs), strict=True))
    assert rows["ant"][3] == f"{earlier['ant']:.0f}"


@pytest.mark.parametrize(
    ("over", "first", "last", "label"),
    [
        ("hour", "2025-06-01T13:00:00", "2025-06-01T13:59:59.5", "2025-06-01T13"),
        ("6hours", "2025-06-01T12:00:00", "2025-06-01T17:59:59", "2025-06-01T12"),
        ("day", "2024-02-29", "2024-02-29T23:59:59", "2024-02-29"),
        ("week", "2024-12-30", "2025-01-05T23:59:59", "2025-W01"),
        ("2 weeks", "2024-12-30", "2025-01-12T23:59:59", "2024-12-30"),
        ("months", "2025-02-01", "2025-02-28T23:59:59", "2025-02"),
        ("3months", "2025-04-01", "2025-06-30T23:59:59", "2025-04"),
        ("quarter", "2025-04-01", "2025-06-30T23:59:59", "2025-Q2"),
        ("Year", "2025-01-01", "2025-12-31T23:59:59", "2025"),
        ("2years", "2024-01-01", "2025-12-31T23:59:59", "2024"),
    ],
)
def test_periods_begin_and_end_where_a_calendar_has_them(over, first, last, label):
    period = parse_over(over)
    inside = np.array([seconds(first), seconds(last)])
    index = period.index(inside)
    assert index[0] == index[1]
    assert period.label(int(index[0])) == label
    assert period.index(np.array([seconds(first) - 1]))[0] == index[0] - 1
    assert period.index(np.floor(inside[1:]) + 1)[0] == index[0] + 1


@pytest.mark.parametrize("word", ["fortnight", "month-ish", "0days", "", "12"])
def test_what_is_no_period_is_refused(word):
    with pytest.raises(ConfigError, match="hour, day, week, month, quarter, year"):
        parse_over(word)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.7e9, 1700000000.5], [1.7e9, 1700000000.5]),
        (["1700000000", None], [1.7e9, None]),
        (["2025-06", "2025-Q2", "2025-W23", "2025"], ["2025-06-01", "2025-04-01", "2025-06-02", "2025-01-01"]),
        (["2025-06-01", "June"], ["2025-06-01", None]),
        (["2025-06-01T10:00:00+02:00", "2025-06-01T10:00:00Z"], ["2025-06-01T08:00:00", "2025-06-01T10:00:00"]),
        ([datetime(2025, 6, 1, 10), None], ["2025-06-01T10:00:00", None]),
        ([2024, 2025], ["2024-01-01", "2025-01-01"]),
        ([1.7e12, float("nan"), -5.0], [None, None, None]),
        (["2025-13", "2025-W60", "1969"], [None, None, None]),
    ],
)
def test_times_are_read_as_people_write_them(values, expected):
    wanted = [seconds(one) if isinstance(one, str) else np.nan if one is None else one for one in expected]
    np.testing.assert_allclose(times_of(pa.array(values), parse_over("year")), wanted)


def test_text_of_longer_periods_than_asked_for_is_refused():
    with pytest.raises(ConfigError, match=r"'2025-06' are months already; use --over month"):
        times_of(pa.array(["2025-06"]), parse_over("week"))


def test_wrong_arguments_are_refused():
    a, b, won, times = draw(50)
    with pytest.raises(ConfigError, match="cumulative or alone"):
        fit_history(a, b, won, times, models=NAMES, mode="rolling")
    times[7] = np.nan
    with pytest.raises(InputError, match="vote 8 has no time"):
        fit_history(a, b, won, times, models=NAMES)
    with pytest.raises(InputError, match="all are ties"):
        fit_history([0], [1], [2], [START], models=NAMES, likelihood="bt")
