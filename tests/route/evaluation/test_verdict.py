"""Whether routing pays, in words, on tables whose answer is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from p2l.common.errors import ConfigError, InputError
from p2l.common.report.reports import report_page
from p2l.metrics import Interval
from route.config import load_config
from route.evaluation.measuring import Results, across, within
from route.evaluation.policies import Setup
from route.evaluation.report import routing_markdown, routing_report, routing_text, write_results
from route.evaluation.table import ScoreTable
from route.evaluation.verdict import decide, routing_verdict, write_router
from route.routing.guard import Guard
from tests.route.evaluation.routing_tables import known_table, random_table


def measured(table: ScoreTable, *, on_average: bool = False) -> Results:
    return within(table, Setup("words", on_average=on_average), share=0.4, folds=1, seed=0)[0]


@pytest.mark.parametrize("on_average", [False, True])
def test_where_prompts_tell_who_can_do_what_routing_pays_and_has_most_of_what_the_oracle_gains(
    on_average: bool,
) -> None:
    results = measured(known_table(200), on_average=on_average)
    router, category, oracle = (results.policies[name] for name in ("p2l", "category", "oracle"))
    assert oracle.accuracy.estimate == pytest.approx(1.0)  # one of the two is right on every prompt
    assert oracle.oracle_share["area"].estimate == pytest.approx(1.0)
    assert category.oracle_share["area"].estimate > 0.9
    assert router.oracle_share["area"].lower > 0.5
    gained = router.over_constant["area"].estimate / oracle.over_constant["area"].estimate
    assert router.oracle_share["area"].estimate == pytest.approx(gained)
    assert decide(results).policy == "p2l"
    verdict = routing_verdict(results)
    assert verdict.tone == "good"
    assert verdict.sentence.startswith(f"Routing pays: {100 * gained:.1f}% (")
    assert "of what an oracle would gain" in verdict.sentence
    shown = routing_text(results, None)
    assert shown.splitlines()[0] == verdict.sentence


@pytest.fixture(scope="module")
def by_luck() -> Results:
    """Results on prompts that say nothing."""
    return measured(random_table(200))


def test_no_policy_is_above_the_oracle_and_the_constant_has_no_share(by_luck: Results) -> None:
    results = by_luck
    for name, policy in results.policies.items():
        assert policy.accuracy.estimate <= results.policies["oracle"].accuracy.estimate + 1e-9
        assert ("area" in policy.oracle_share) is (name != "single")
    # What is luck of the single answer is the oracle's gain too, and nobody else's.
    assert results.policies["oracle"].over_constant["area"].lower > 0.1
    assert results.policies["category"].oracle_share["area"].upper < 0.5
    assert decide(results).policy == "single"
    assert routing_verdict(results).sentence.startswith("Undecided: about ")  # a small gain may be there


def test_where_one_model_is_better_on_every_prompt_nobody_is_sent_elsewhere(tmp_path: Path) -> None:
    table = known_table(1000)
    table = replace(table, scores=np.tile([0.9, 0.4], (1000, 1)), one_price=True, costs=np.ones((1000, 2)))
    few = measured(table.take(np.arange(80)))
    assert decide(few).policy == "single"
    assert not decide(few).is_decided  # nothing was gained on 30 prompts, which may be luck
    results = measured(table)
    assert results.policies["p2l"].oracle_share == {}  # there is no gain to take a share of
    assert decide(results).policy == "single"
    sentence = "Do not route here: nothing beats always asking large by a point of the score."
    assert routing_verdict(results).sentence == sentence
    write_results(results, tmp_path, has_figures=False)
    written = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert next(iter(written)) == "verdict"
    assert written["verdict"]["constant"] == "large"
    assert written["verdict"]["policy"] == "single"
    assert written["policies"]["oracle"]["oracle_share"] == {}
    assert routing_markdown(results).startswith(f"**{sentence}**")
    assert "Do not route here: nothing beats" in report_page(routing_report(results, "p2l", "scores"))


def test_the_best_constant_is_one_for_each_budget() -> None:
    table = random_table(300)
    means = (0.5, 0.4, 0.7, 0.9, 0.6)  # m1 and m4 cost more than a better one
    drawn = np.random.default_rng(1).random((300, 5)) < np.array(means)
    results = measured(replace(table, scores=drawn.astype(float)))
    assert [name for name, _ in results.constants] == ["m0", "m2", "m3"]
    assert results.constant == "m3"
    costs = [cost for _, cost in results.constants]
    assert costs == pytest.approx([table.costs[:, column].mean() for column in (0, 2, 3)], rel=0.05)
    assert "m0 from $" in routing_verdict(results).reason


def with_leads(results: Results, **leads: Interval) -> Results:
    """Return the results with other gains over the best constant."""
    policies = dict(results.policies)
    for name in ("p2l", "category", "nearest", "clusters"):
        lead = leads.get(name, Interval(-0.01, -0.02, 0.0, 0.005))
        policies[name] = replace(policies[name], over_constant={"area": lead}, oracle_share={"area": lead})
    return replace(results, policies=policies)


def test_an_undecided_gain_says_how_many_prompts_would_decide_it(by_luck: Results) -> None:
    open_ = with_leads(replace(by_luck, prompts=1200), p2l=Interval(0.01, -0.01, 0.03, 0.01))
    decision = decide(open_)
    assert not decision.is_decided
    assert decision.policy == "single"
    # To show a gain of 0.01 the error must fall to 0.01 / (1.96 + 0.84), so that 1,200 prompts become about 9,419.
    further = decision.further_prompts
    assert further == pytest.approx(9419 - 1200, rel=0.01)
    assert f"Undecided: about {further:,} more graded prompts held out" in routing_verdict(open_).sentence
    assert routing_verdict(open_).tone == ""


def test_a_handful_of_prompts_decides_nothing_and_no_gain_is_ruled_out_by_few(by_luck: Results) -> None:
    sure, none = Interval(0.5, 0.4, 0.6, 0.05), Interval(-0.01, -0.02, 0.005, 0.006)
    assert not decide(with_leads(replace(by_luck, prompts=19), p2l=sure)).is_decided
    assert decide(with_leads(replace(by_luck, prompts=20), p2l=sure)).policy == "p2l"
    ruled_out = dict.fromkeys(("p2l", "category", "nearest", "clusters"), none)
    assert decide(with_leads(by_luck, **ruled_out)).is_decided
    wide = {**ruled_out, "nearest": Interval(-0.01, -0.04, 0.02, 0.015)}
    assert not decide(with_leads(by_luck, **wide)).is_decided


def test_five_prompts_that_all_gain_are_not_a_hundred_per_cent() -> None:
    table = replace(known_table(105), one_price=True, costs=np.ones((105, 2)))
    train, few = table.take(np.arange(100)), table.take(np.arange(100, 105))
    results, _ = across(train, few, Setup("words"), seed=0)
    assert results.trainings == 4
    share = results.policies["p2l"].oracle_share["accuracy"]
    assert share.upper - share.lower > 0.1
    decision = decide(results)
    assert (decision.policy, decision.is_decided) == ("single", False)
    assert decision.further_prompts is not None
    assert decision.further_prompts >= 15


def test_a_simpler_policy_that_is_ahead_where_p2l_is_not_is_named_only_beyond_the_luck_of_three_tries(
    by_luck: Results,
) -> None:
    ahead = with_leads(by_luck, category=Interval(0.03, 0.01, 0.05, 0.01))
    assert decide(ahead).policy == "category"
    assert "it does not beat always asking" in routing_verdict(ahead).sentence
    assert "per-category best does, with 3.0%" in routing_verdict(ahead).sentence
    unsure = with_leads(by_luck, category=Interval(0.02, 0.0001, 0.04, 0.01))
    assert decide(unsure).policy == "single"


def test_the_configuration_holds_all_models_where_routing_pays_and_else_the_constant(
    tmp_path: Path, by_luck: Results
) -> None:
    base, target = tmp_path / "base.yaml", tmp_path / "router.yaml"
    entries = "".join(f"  {name}: {{name: {name}, type: mock, cost: 1}}\n" for name in (*by_luck.models, "other"))
    base.write_text(f"model_configs:\n{entries}static_order: [other, m1, {by_luck.constant}]\nmax_attempts: 2\n")
    base.chmod(0o600)  # as a file that holds keys
    pays = with_leads(by_luck, p2l=Interval(0.03, 0.01, 0.05, 0.01))
    write_router(pays, base, target)
    assert target.stat().st_mode & 0o777 == 0o600
    assert tuple(load_config(target).model_configs) == by_luck.models
    write_router(by_luck, base, target)
    written = load_config(target)
    assert list(written.model_configs) == written.static_order == [by_luck.constant]
    assert written.max_attempts == 2
    assert target.read_text(encoding="utf-8").startswith("# Undecided")
    before = target.read_text(encoding="utf-8")
    base.write_text("model_configs:\n  other: {name: other, type: mock, cost: 1}\n")
    with pytest.raises(InputError, match=f"no model '{by_luck.constant}' in model_configs"):
        write_router(by_luck, base, target)
    assert target.read_text(encoding="utf-8") == before


def test_the_configuration_holds_the_guard_of_all_models_where_routing_pays(tmp_path: Path, by_luck: Results) -> None:
    base, target = tmp_path / "base.yaml", tmp_path / "router.yaml"
    entry = "{name: a, type: mock, cost: 1}"
    entries = "".join(f"  {name}: {entry}\n" for name in by_luck.models)
    base.write_text(f"model_configs:\n{entries}")
    guard = Guard(dict.fromkeys(by_luck.models, 0.5), dict.fromkeys(by_luck.models, 0.25), 0.3)
    guarded = replace(by_luck, guard=guard)
    write_router(with_leads(guarded, p2l=Interval(0.03, 0.01, 0.05, 0.01)), base, target)
    section = load_config(target).guard
    assert section is not None
    assert section.routed() == guard
    write_router(guarded, target, tmp_path / "constant.yaml")
    assert load_config(tmp_path / "constant.yaml").guard is None
    target.write_text(target.read_text(encoding="utf-8") + "shadow: {p2l: 'http://127.0.0.1:1', share: 0.5}\n")
    with pytest.raises(ConfigError, match=r"guard.*is of the router's own P2L"):
        load_config(target)
    section_of_others = yaml.safe_dump({"guard": guard.as_section(by_luck.models)})
    base.write_text(f"model_configs:\n{entries}  new: {entry}\n{section_of_others}")
    with pytest.raises(ConfigError, match=r"key 'guard\.models': lacks 'new'; measure again by p2l eval-routing"):
        load_config(base)
