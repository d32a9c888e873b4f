"""The verdict of an evaluation of routing: whether choosing by prompt pays, and what share of an oracle's gain it has.

What is decided between is the router on the P2L, a simpler policy that chooses by prompt, and the best constant: always
asking one model, or at each budget the best that it buys, chosen on training prompts. Whoever departs from the constant
has to be ahead of it by an interval over prompts and trainings, so that nobody is switched to a router by luck. That
nothing pays is said only where these intervals leave no room for a gain that is worth a router. All else is undecided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

from p2l.common.cli import counted, nearest
from p2l.common.errors import ConfigError, InputError
from p2l.common.files import atomic_path
from p2l.common.report.reports import Verdict, percents, span, with_interval
from p2l.common.report.tables import number_text
from p2l.metrics import Interval
from route.evaluation.measuring import Results

_SIMPLER_POLICIES = ("category", "nearest", "clusters")
"""Policies that choose by prompt too, in a simpler way."""
_LEVEL = 0.95
"""Of what counts as beyond chance."""
_FEWEST_PROMPTS = 20
"""Held-out prompts below which nothing is decided: intervals rest on their being like those to come."""
_SMALLEST_GAIN = 0.01
"""Of the score, which is worth a router; where all intervals end below it, the constant is as good."""
_POWER = 0.8
"""Chance that further prompts decide, if the gain is as large as it seems."""


@dataclass(frozen=True)
class RoutingDecision:
    """What to do with requests like those that were held out."""

    policy: str
    """`p2l`, the name of a simpler policy that is ahead where P2L is not, or `single`: the best constant."""
    is_decided: bool
    """Whether more graded prompts are unlikely to turn it; a gain that may be luck leaves it open."""
    further_prompts: int | None
    """Held-out prompts to add, that would decide an open question with a chance of 80 %."""

    @property
    def routes_by_p2l(self) -> bool:
        """Return whether a router on this P2L should be served."""
        return self.policy == "p2l"


def decide(results: Results) -> RoutingDecision:
    """Decide between the router, simpler policies and the best constant, by the measure of the results."""
    leads = {name: policy.over_constant.get(results.measure) for name, policy in results.policies.items()}
    router = leads["p2l"]
    assert router is not None
    undecided = RoutingDecision(
        policy="single", is_decided=False, further_prompts=_further_prompts(router, results.prompts)
    )
    if results.prompts < _FEWEST_PROMPTS:
        return undecided
    if router.lower > 0:
        return RoutingDecision(policy="p2l", is_decided=True, further_prompts=None)
    simpler = {name: lead for name in _SIMPLER_POLICIES if (lead := leads.get(name)) is not None}
    # The best of three is taken, so that each has to be surer.
    ahead = {name: float(lead.estimate) for name, lead in simpler.items() if _is_ahead(lead, tries=len(simpler))}
    if ahead:
        return RoutingDecision(policy=max(ahead, key=ahead.__getitem__), is_decided=True, further_prompts=None)
    if max(lead.upper for lead in (router, *simpler.values())) < _SMALLEST_GAIN:
        return RoutingDecision(policy="single", is_decided=True, further_prompts=None)
    return undecided


def _is_ahead(lead: Interval, *, tries: int) -> bool:
    """Return whether a gain is beyond chance, where the best of `tries` is looked for."""
    least_errors = NormalDist().inv_cdf(1 - (1 - _LEVEL) / 2 / tries)
    return bool(lead.lower > 0 and lead.estimate > least_errors * lead.standard_error)


def _further_prompts(lead: Interval, prompts: int) -> int:
    """Return how many prompts beside these an interval needs to leave out zero, or a gain that is worth a router.

    With the chance `_POWER`, if the gain is as it seems. The variance of a gain is v / n of n prompts as they differ,
    and 1 / n^2 of the two that nobody has seen.
    """
    errors = NormalDist().inv_cdf(0.5 + _LEVEL / 2) + NormalDist().inv_cdf(_POWER)
    distance = max(float(lead.estimate), _SMALLEST_GAIN - float(lead.estimate)) / errors
    spread = max(float(lead.standard_error) ** 2 - 1.0 / (prompts + 1) ** 2, 0.0) * prompts
    needed = math.ceil((spread + math.hypot(spread, 2.0 * distance)) / (2.0 * distance**2))
    return max(1, needed - prompts, _FEWEST_PROMPTS - prompts)


def routing_verdict(results: Results) -> Verdict:
    """Return whether to route, the share of the oracle's gain that the router has, and what it rests on."""
    decision = decide(results)
    constant = f"always asking {results.constant}"
    reason = _reason(results)
    if decision.routes_by_p2l:
        share = results.policies["p2l"].oracle_share[results.measure]
        sentence = f"Routing pays: {with_interval(share, percents)} of what an oracle would gain{_cheaper(results)}."
        return Verdict(sentence, "good", reason)
    if decision.policy in _SIMPLER_POLICIES:
        policy = results.policies[decision.policy]
        part = with_interval(policy.oracle_share[results.measure], percents)
        sentence = (
            f"Do not route by this P2L: it does not beat {constant}, but {policy.about} does, with {part} of what an "
            "oracle would gain."
        )
        return Verdict(sentence, "bad", reason)
    if decision.further_prompts is not None:
        more = counted(decision.further_prompts, "more graded prompt")
        sentence = (
            f"Undecided: about {more} held out would tell whether anything beats {constant}, which is what to do until "
            "then."
        )
        return Verdict(sentence, "", reason)
    return Verdict(f"Do not route here: nothing beats {constant} by a point of the score.", "bad", reason)


def _cheaper(results: Results) -> str:
    """Return how much less the router costs at the score of the best single model, where an interval shows it."""
    ratio = results.policies["p2l"].cost_ratio
    if ratio is None or not ratio.upper < 1:
        return ""
    ends = f"{percents(1 - ratio.upper)} to {percents(1 - ratio.lower)}"
    return f"; {percents(1 - ratio.estimate)} cheaper ({ends}) at the best single model's score"


def _reason(results: Results) -> str:
    """Return the scores behind the verdict: router, best constant, oracle, and the best simpler policy."""
    names = ("p2l", "single", "oracle")
    router, single, oracle = (percents(getattr(results.policies[name], results.measure).estimate) for name in names)
    gain = results.policies["single"].gains[results.measure]
    change = f"{points(abs(gain.estimate))} points {'more' if gain.estimate >= 0 else 'fewer'}"
    over = "" if results.one_price else " over all budgets"
    basis = (
        f"The router has a mean score{over} of {router}, {change} than the best single model's {single} (95% interval "
        f"{span(gain, points)}); an oracle would have {oracle}, on {counted(results.questions, 'question')}."
    )
    return " ".join(filter(None, [basis, _at_equal_cost(results), _lead_over_simpler(results), _by_budget(results)]))


def _at_equal_cost(results: Results) -> str:
    """Return what the router scores at the cost of the best single model; empty where all answers cost the same."""
    gain = results.policies["single"].gains.get("at_equal_cost")
    if gain is None:
        return ""
    change = f"{points(abs(gain.estimate))} points {'more' if gain.estimate >= 0 else 'fewer'} ({span(gain, points)})"
    return f"For what the best single model costs it scores {change}."


def _lead_over_simpler(results: Results) -> str:
    """Return how the router compares with the best policy that chooses by prompt in a simpler way."""
    scores = {
        name: getattr(results.policies[name], results.measure) for name in _SIMPLER_POLICIES if name in results.policies
    }
    if not scores:
        return ""
    best = max(scores, key=lambda name: float(scores[name].estimate))
    gain = results.policies[best].gains[results.measure]
    more = "above" if gain.estimate >= 0 else "below"
    change = f"{points(abs(gain.estimate))} points {more} that of {results.policies[best].about}"
    return f"Its mean score is {change} ({span(gain, points)})."


def _by_budget(results: Results) -> str:
    """Return which single model is the best at smaller budgets, where that is another one."""
    if results.one_price or len(results.constants) < 2:
        return ""
    steps = [f"{name} from ${cost:.2g} an answer" for name, cost in results.constants]
    return f"The best single model by budget: {', '.join(steps)}."


def write_router(results: Results, base: Path, target: Path) -> None:
    """Write the router's configuration `base` with the models that the verdict asks: all measured, or the constant.

    Raises InputError where it lacks one of them, or where what it says of other models does not go without these.
    """
    import yaml

    from p2l.common.config import read_yaml
    from route.config import load_config

    content = read_yaml(base)
    models = load_config(base).model_configs
    routes = decide(results).routes_by_p2l
    names = results.models if routes else (results.constant,)
    for name in names:
        if name not in models:
            raise InputError(f"{base}: no model {name!r} in model_configs{nearest(name, models)}; add it")
        if name not in content["model_configs"]:
            raise InputError(f"{base}: {name!r} is one of the efforts of a model; give it an entry of its own")
    content["model_configs"] = {name: content["model_configs"][name] for name in names}
    if "static_order" in content:
        content["static_order"] = [name for name in content["static_order"] if name in names]
    content.pop("guard", None)  # of another measurement
    if routes and results.guard is not None:
        content["guard"] = results.guard.as_section(names)
    sentence = routing_verdict(results).sentence
    with atomic_path(target) as temporary:
        # It may hold keys, which nobody else reads than whoever reads the other file.
        temporary.touch(mode=0o600)
        rest = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        temporary.write_text(f"# {sentence}\n{rest}", encoding="utf-8")
        temporary.chmod(base.stat().st_mode & 0o777)
        try:
            load_config(temporary)
        except ConfigError as error:
            problem = str(error).partition(": ")[2]
            raise InputError(f"{base}: does not go with {', '.join(names)} alone: {problem}") from error


def points(value: float) -> str:
    """Return a difference of scores in hundredths: `2.3`."""
    return number_text(100 * value, 1)
