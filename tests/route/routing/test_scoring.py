"""Scorers against an endpoint on loopback that changes its model, slows down and goes away, and a model in process."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from p2l.client import AsyncP2LClient
from p2l.common.errors import CheckpointError, ConfigError, KeyRefusedError
from route.routing.candidates import get
from route.routing.decision import Coefficients, RoutedModel
from route.routing.router import Router
from route.routing.scoring import EndpointScorer, LocalScorer, Memory, PromptLimits, Scorer, check_family, make_scorer
from tests.conftest import ROOT, Command
from tests.p2l.serving.conftest import make_model
from tests.p2l.serving.test_familiarity import STRANGE, with_words
from tests.p2l.serving.test_uncertainty import PROMPT
from tests.p2l.serving_models import NAMES, tiny


@dataclass
class Service:
    """A P2L endpoint whose coefficients are the lengths of the prompt's turns."""

    names: list[str] = field(default_factory=lambda: ["ant", "bee"])
    revision: str = "r1"
    likelihood: str = "grk"
    status: int = 200
    listed: list[str] | None = None
    """What /models says, if that is something else than /predict means."""
    limits: dict[str, Any] = field(default_factory=dict)
    prompts: list[list[str]] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.open.set()

    async def answer(self, request: web.Request) -> web.Response:
        self.asked[request.path] += 1
        if request.path != "/info" or self.status == 403:
            await self.open.wait()
        if self.status != 200:
            return web.json_response({"detail": "not now"}, status=self.status)
        if request.path == "/info":
            return web.json_response({"likelihood": self.likelihood, **self.limits})
        if request.path == "/models":
            return web.json_response({"models": self.listed or self.names, "revision": self.revision})
        self.prompts.append((await request.json())["prompt"])
        size = float(sum(map(len, self.prompts[-1])))
        coefs = [size + place for place in range(len(self.names))]
        return web.json_response({"coefs": coefs, "eta": 0.5, "revision": self.revision})


@asynccontextmanager
async def serving(service: Service) -> AsyncIterator[str]:
    app = web.Application(client_max_size=2**23)
    app.router.add_route("*", "/{path}", service.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        service.open.set()
        await runner.cleanup()


class Pauses:
    """Pauses that end when the test says so."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self.end = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        await self.end.wait()
        await asyncio.sleep(0.001)


Scenario = Callable[[Service, EndpointScorer, Pauses], Awaitable[None]]


def play(scenario: Scenario, *, family: str = "grk", started: bool = True, **options: Any) -> None:
    """Run a scenario with a service and a scorer that asks it."""

    async def run() -> None:
        service, pauses = Service(), Pauses()
        async with serving(service) as url:
            client = AsyncP2LClient(url, "key", retries=0, attempt_timeout=5.0)
            scorer = EndpointScorer(client, family=family, sleep=pauses, **options)
            if started:
                await scorer.start()
            try:
                await scenario(service, scorer, pauses)
            finally:
                await scorer.close()

    asyncio.run(run())


async def until(true: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not true():
            await asyncio.sleep(0.002)

    await asyncio.wait_for(poll(), 20.0)


# The endpoint.


def test_coefficients_come_by_name() -> None:
    async def scenario(_service: Service, scorer: EndpointScorer, _pauses: Pauses) -> None:
        assert scorer.model_list == ("ant", "bee")
        said = await scorer.coefficients(["abc", "d"], 5.0)
        assert said == Coefficients({"ant": 4.0, "bee": 5.0}, 0.5, "r1")
        assert scorer.trouble == ""

    play(scenario)


def test_a_prompt_is_asked_for_once() -> None:
    async def scenario(service: Service, scorer: EndpointScorer, _pauses: Pauses) -> None:
        service.open.clear()
        waiting = [asyncio.create_task(scorer.coefficients(["same"], 5.0)) for _ in range(20)]
        await until(lambda: service.asked["/predict"] == 1)
        service.open.set()
        assert len({id(said) for said in await asyncio.gather(*waiting)}) == 1
        assert await scorer.coefficients(["same"], 5.0) is not None
        await scorer.coefficients(["sa", "me"], 5.0)
        assert service.asked["/predict"] == 2

    play(scenario)


def test_a_late_answer_serves_the_next_request() -> None:
    async def scenario(service: Service, scorer: EndpointScorer, _pauses: Pauses) -> None:
        service.open.clear()
        assert await scorer.coefficients(["slow"], 0.02) is None
        service.open.set()
        assert await scorer.coefficients(["slow"], 5.0) is not None
        assert await scorer.coefficients(["slow"], 0.0) is not None
        assert service.asked["/predict"] == 1

    play(scenario)


def test_a_client_that_leaves_takes_no_answer_from_others() -> None:
    async def scenario(service: Service, scorer: EndpointScorer, _pauses: Pauses) -> None:
        service.open.clear()
        leaving, staying = (asyncio.create_task(scorer.coefficients(["both"], 5.0)) for _ in range(2))
        await until(lambda: service.asked["/predict"] == 1)
        leaving.cancel()
        service.open.set()
        assert await staying is not None

    play(scenario)


def test_a_new_model_brings_its_own_names() -> None:
    heard: list[Sequence[str]] = []

    async def scenario(service: Service, scorer: EndpointScorer, _pauses: Pauses) -> None:
        await scorer.coefficients(["abc"], 5.0)
        service.names, service.revision = ["bee", "cat", "dog"], "r2"
        said = await scorer.coefficients(["other"], 5.0)
        assert said == Coefficients({"bee": 5.0, "cat": 6.0, "dog": 7.0}, 0.5, "r2")
        assert scorer.model_list == ("bee", "cat", "dog")
        again = await scorer.coefficients(["abc"], 5.0)  # the old model's answer is not served as the new one's
        assert again is not None
        assert again.revision == "r2"
        assert heard == [("ant", "bee"), ("bee", "cat", "dog")]
        assert service.asked["/models"] == 2

    play(scenario, on_models=heard.append)


def test_answers_that_do_not_fit_the_list_are_no_scores() -> None:
    async def scenario(service: Service, scorer: EndpointScorer, _pauses: Pauses) -> None:
        service.names, service.listed, service.revision = ["x", "y", "z"], ["x"], "r2"
        assert await scorer.coefficients(["abc"], 5.0) is None
        assert "other models than it lists" in scorer.trouble

    play(scenario)


def test_an_endpoint_that_is_down_at_start_is_found_later() -> None:
    heard: list[Sequence[str]] = []

    async def scenario(service: Service, scorer: EndpointScorer, pauses: Pauses) -> None:
        service.status = 503
        await scorer.start()
        assert scorer.model_list is None
        assert "not now" in scorer.trouble
        assert await scorer.coefficients(["abc"], 5.0) is None
        assert service.asked["/predict"] == 0
        pauses.end.set()
        await until(lambda: len(pauses.taken) > 7)
        service.status = 200
        await until(lambda: not scorer.trouble)
        assert await scorer.coefficients(["abc"], 5.0) is not None
        assert heard == [("ant", "bee")]
        assert pauses.taken[:8] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]

    play(scenario, started=False, on_models=heard.append)


def test_an_outage_delays_nobody_and_cached_prompts_keep_their_scores() -> None:
    async def scenario(service: Service, scorer: EndpointScorer, pauses: Pauses) -> None:
        known = await scorer.coefficients(["known"], 5.0)
        service.status = 500
        assert await scorer.coefficients(["first"], 5.0) is None
        assert scorer.trouble
        for _ in range(10):
            assert await scorer.coefficients(["later"], 5.0) is None
            assert await scorer.coefficients(["known"], 5.0) is known
        assert service.asked["/predict"] == 2
        service.status = 200
        pauses.end.set()
        await until(lambda: not scorer.trouble)
        assert await scorer.coefficients(["later"], 5.0) is not None

    play(scenario)


def test_an_endpoint_that_is_too_slow_again_and_again_is_left_alone() -> None:
    async def scenario(service: Service, scorer: EndpointScorer, _pauses: Pauses) -> None:
        service.open.clear()
        for number in range(5):
            assert scorer.trouble == ""
            assert await scorer.coefficients([f"prompt {number}"], 0.005) is None
        assert "too slow 5 times in a row" in scorer.trouble

    play(scenario)


def test_a_prompt_that_the_endpoint_cannot_use_is_no_trouble() -> None:
    async def scenario(service: Service, scorer: EndpointScorer, _pauses: Pauses) -> None:
        service.status = 413
        assert await scorer.coefficients(["long"], 5.0) is None
        assert await scorer.coefficients([], 5.0) is None
        assert scorer.trouble == ""

    play(scenario)


def test_only_the_newest_part_is_scored_up_to_the_limits_of_the_endpoint() -> None:
    async def scenario(service: Service, scorer: EndpointScorer, _pauses: Pauses) -> None:
        service.limits = {"max_turns": 3, "max_chars": 10, "max_body_mb": 8.0}
        await scorer.start()
        for turns in (["a", "b", "c"], ["0", "a", "b", "c"], ["old" * 9, "1234567", "890"]):
            assert await scorer.coefficients(turns, 5.0) is not None
        assert service.prompts == [["a", "b", "c"], ["1234567", "890"]]  # the second was known

    play(scenario, started=False)


@pytest.mark.parametrize(
    "limits", [{}, {"max_chars": "many", "max_turns": -1, "max_body_mb": None}, {"max_chars": True}]
)
def test_an_endpoint_that_does_not_say_gets_what_one_takes_by_default(limits: dict[str, Any]) -> None:
    async def scenario(service: Service, scorer: EndpointScorer, _pauses: Pauses) -> None:
        service.limits = limits
        await scorer.start()
        assert await scorer.coefficients(["x" * 3_000_000, "é" * 900_000], 30.0) is not None
        assert [len(turn) for turn in service.prompts[-1]] == [100_000, 900_000]
        assert await scorer.coefficients([str(number) for number in range(50_000)], 30.0) is not None
        assert service.prompts[-1] == [str(number) for number in range(40_000, 50_000)]

    play(scenario, started=False)


@settings(max_examples=50)
@given(
    st.floats(0.001, 0.1),
    st.lists(st.text(st.sampled_from('a"\\\x00é🦜'), max_size=40), min_size=1, max_size=900),
    st.integers(1, 400),
)
def test_what_is_scored_fits_into_a_body_that_the_endpoint_takes(size: float, turns: list[str], times: int) -> None:
    limits = PromptLimits.of_endpoint({"max_body_mb": size})
    newest = limits.newest([turn * times for turn in turns])
    body = json.dumps({"prompt": list(newest)}, ensure_ascii=False).encode()
    assert len(body) <= max(size * 2**20, 100)


def test_long_prompts_that_are_too_slow_do_not_end_the_scores_of_short_ones() -> None:
    async def scenario(service: Service, scorer: EndpointScorer, _pauses: Pauses) -> None:
        service.open.clear()
        for number in range(20):
            assert await scorer.coefficients([f"{number} " + "long " * 1000], 0.005) is None
        assert scorer.trouble == ""
        service.open.set()
        assert await scorer.coefficients(["short"], 5.0) is not None
        service.status = 503  # too much long text is waiting there
        for number in range(20):
            assert await scorer.coefficients([f"later {number} " + "long " * 1000], 5.0) is None
        assert scorer.trouble == ""
        service.status = 200
        assert await scorer.coefficients(["another"], 5.0) is not None

    play(scenario)


def test_an_endpoint_that_has_no_score_for_any_long_prompt_is_left_alone() -> None:
    async def scenario(service: Service, scorer: EndpointScorer, _pauses: Pauses) -> None:
        service.status = 503
        for number in range(50):
            assert scorer.trouble == ""
            assert await scorer.coefficients([f"{number} " + "long " * 1000], 5.0) is None
        assert "50 long prompts in a row" in scorer.trouble

    play(scenario)


def test_long_prompts_that_wait_leave_places_to_short_ones() -> None:
    async def test() -> None:
        gate = asyncio.Event()

        async def ask(_turns: Sequence[str]) -> Coefficients:
            await gate.wait()
            return Coefficients({"ant": 1.0}, None, "r1")

        memory = Memory(ask, most_waiting=8)
        long = [asyncio.ensure_future(memory.ask([f"{number}" * 5000], 30.0)) for number in range(9)]
        await asyncio.sleep(0)
        short = [asyncio.ensure_future(memory.ask([f"{number}"], 30.0)) for number in range(6)]
        await asyncio.sleep(0)
        gate.set()
        assert sum(each is not None for each in await asyncio.gather(*long)) == 2
        assert None not in await asyncio.gather(*short)
        assert await memory.ask(["7" * 6000], 30.0) is not None  # their places are free again

    asyncio.run(test())


def test_a_refused_key_stops_the_start() -> None:
    async def scenario(service: Service, scorer: EndpointScorer, _pauses: Pauses) -> None:
        service.status = 403
        with pytest.raises(KeyRefusedError, match="refuses the API key"):
            await scorer.start()

    play(scenario, started=False)


def test_a_model_of_another_family_stops_the_start() -> None:
    async def scenario(_service: Service, scorer: EndpointScorer, _pauses: Pauses) -> None:
        with pytest.raises(ConfigError, match="likelihood grk, which bt routers cannot use; use router type grk-endp"):
            await scorer.start()

    play(scenario, family="bt", started=False)


def test_what_the_router_refuses_of_the_list_stops_the_start() -> None:
    router = Router([RoutedModel("zebra", 1.0)], kind="grk-endpoint", rng=np.random.default_rng(0))

    async def scenario(_service: Service, scorer: EndpointScorer, _pauses: Pauses) -> None:
        with pytest.raises(ConfigError, match="P2L knows none of the configured models: zebra"):
            await scorer.start()

    play(scenario, started=False, on_models=router.unknown)


# Families.


@pytest.mark.parametrize(
    ("family", "likelihood", "fits"),
    [
        ("bt", "bt", True),
        ("bt", "bt-tie", True),
        ("bt", "rk", False),
        ("bt", "grk", False),
        ("grk", "grk", True),
        ("grk", "rk-reparam", True),
        ("grk", "bt", False),
        ("grk", "ba", False),
        ("grk", "", True),
        ("random", "bt", True),
    ],
)
def test_coefficients_must_mean_what_the_router_takes_them_for(family: str, likelihood: str, fits: bool) -> None:
    if fits:
        check_family(family, likelihood)
    else:
        with pytest.raises(ConfigError, match=f"likelihood {likelihood}, which {family} routers cannot use; "):
            check_family(family, likelihood)


# The memory.


def test_the_memory_is_bounded_and_forgets_what_was_used_longest_ago() -> None:
    async def ask(turns: Sequence[str]) -> Coefficients:
        return Coefficients({"ant": float(len(turns[0]))})

    async def run() -> None:
        memory = Memory(ask, capacity=2)
        for text in ("a", "b"):
            await memory.ask([text], None)
        assert memory.recall(["a"], "") is not None
        await memory.ask(["c"], None)
        assert [memory.recall([text], "") is not None for text in ("a", "b", "c")] == [True, False, True]

    asyncio.run(run())


def test_too_many_waiting_prompts_are_turned_away() -> None:
    async def run() -> None:
        opened = asyncio.Event()

        async def ask(_turns: Sequence[str]) -> Coefficients:
            await opened.wait()
            return Coefficients({})

        memory = Memory(ask, most_waiting=2)
        waiting = [asyncio.create_task(memory.ask([text], 5.0)) for text in ("a", "b")]
        await asyncio.sleep(0)
        assert await memory.ask(["c"], 5.0) is None
        opened.set()
        assert await asyncio.gather(*waiting) == [Coefficients({})] * 2
        assert await memory.ask(["c"], 5.0) is not None

    asyncio.run(run())


# The model in this process, and none.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("local")
    (root / "backbone").mkdir()
    model, tokenizer = tiny(root / "backbone", "tfidf")
    model.save_pretrained(root / "model")
    tokenizer.save_pretrained(root / "model")
    return root / "model"


def test_a_model_in_this_process_says_what_an_endpoint_would(folder: Path) -> None:
    from p2l.inference import P2L

    async def run() -> None:
        heard: list[Sequence[str]] = []
        scorer = LocalScorer(folder, family="grk", on_models=heard.append)
        assert await scorer.coefficients(["early"], 5.0) is None
        assert scorer.trouble
        await scorer.start()
        assert list(scorer.model_list or ()) == list(heard[0]) == NAMES
        assert scorer.trouble == ""
        said = await scorer.coefficients(["what is 2 plus 2"], 30.0)
        assert said is not None
        expected = P2L.from_pretrained(folder).predict([["what is 2 plus 2"]])
        assert list(said.coefs.values()) == expected.coefs[0].tolist()
        assert said.eta == pytest.approx(float(expected.eta[0]))  # type: ignore[index]
        assert await scorer.coefficients(["what is 2 plus 2"], 0.0) is said
        assert await scorer.coefficients([], 30.0) is None
        await scorer.close()

    asyncio.run(run())


def test_a_model_in_this_process_must_be_of_the_family_and_there(folder: Path) -> None:
    async def start(scorer: Scorer) -> None:
        try:
            await scorer.start()
        finally:
            await scorer.close()

    with pytest.raises(ConfigError, match="bt routers cannot use"):
        asyncio.run(start(LocalScorer(folder, family="bt")))
    with pytest.raises(CheckpointError):
        asyncio.run(start(LocalScorer(folder / "absent", family="bt")))


def test_a_model_with_a_posterior_says_how_familiar_a_prompt_is(tmp_path: Path) -> None:
    async def run() -> None:
        scorer = LocalScorer(with_words(make_model(tmp_path, seed=1), tmp_path / "known"), family="grk")
        await scorer.start()
        said = [await scorer.coefficients([prompt], 30.0) for prompt in (PROMPT, STRANGE)]
        assert [None if each is None else each.familiarity for each in said] == [1.0, 0.0]
        await scorer.close()

    asyncio.run(run())


def test_each_kind_has_its_scorer(folder: Path) -> None:
    async def run() -> None:
        scorers = [
            make_scorer(get("bt-endpoint"), endpoint="http://localhost:1", api_key="key"),
            make_scorer(get("grk-local"), path=folder),
            make_scorer(get("random")),
        ]
        assert [type(scorer) for scorer in scorers] == [EndpointScorer, LocalScorer, Scorer]
        await scorers[2].start()
        assert await scorers[2].coefficients(["any"], None) is None
        assert scorers[2].model_list == ()
        for scorer in scorers:
            await scorer.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("kind", "flag"), [("bt-endpoint", "--router-model-endpoint"), ("grk-local", "--router-model-n")]
)
def test_a_scorer_without_its_source_names_the_flag(kind: str, flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        make_scorer(get(kind))


def test_choosing_imports_nothing_heavy(command: Command) -> None:
    heavy = ("torch", "scipy", "cvxpy", "openai", "anthropic", "pandas", "transformers")
    show = (
        "import sys, route.routing.router, route.routing.scoring; "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = command("python", "-c", show, cwd=ROOT)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
