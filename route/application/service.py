"""The service: its parts, and the checks before it starts."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from p2l.common.access import KeyJudge
from p2l.common.config import line_of
from p2l.common.errors import ConfigError
from p2l.common.pages import EndedSessions
from route.application.hooks import HookCalls, Hooks
from route.application.settings import FALLBACKS, Settings
from route.config import RouterConfig
from route.keep.accounts import Budget
from route.keep.answer_cache import AnswerCache
from route.keep.average_leaderboard import Average
from route.keep.conversations import Sticky
from route.keep.database import Database
from route.keep.feedback import NO_LIMITS, Feedback, StoredVote, Vote, VoteLimits
from route.keep.journal import Journal
from route.keep.ledger import KeyRecord, Ledger, Refusal, key_record
from route.keep.location import filled, open_database
from route.keep.stored_keys import StoredKeys
from route.keep.stored_responses import ResponseStore
from route.keep.visitors import Visitors
from route.keep.workers import Peers, SharedCounts
from route.observability.logs import LOGGER
from route.observability.metrics import RouterMetrics
from route.observability.recent import Recent
from route.observability.tracing import Tracing
from route.request.api_errors import of_refusal
from route.request.chat import key_of
from route.routing.candidates import PairShares, get, pair
from route.routing.experiments import SHADOW, Experiment, Policy, PolicyConfig, policies_in
from route.routing.offsets import Offsets
from route.routing.refusals import Refusals
from route.routing.router import Router
from route.routing.scoring import Scorer, make_scorer
from route.routing.spending import Spending
from route.send.charges import UNKNOWN_LONGEST
from route.send.dispatch import Answer, Dispatcher
from route.send.fleet import Fleet, make_fleet
from route.send.left_calls import book_left_calls, calls_folder

_PARTS_KEPT = (
    *("started", "metrics", "recent", "scorer", "tracing", "database", "peers", "counts", "ledger", "keys"),
    *("finishing", "feedback", "visitors", "sticky", "average", "responses", "key_judge", "ended_sessions"),
    "hook_calls",
)
"""Parts that outlive a configuration."""


class Service:
    """The parts of one worker, for one configuration; `route.application.live` puts another one in its place."""

    def __init__(self, config: RouterConfig, settings: Settings, before: Service | None = None) -> None:
        """Build all parts without starting them; call it within the event loop.

        What outlives a configuration is taken from the service `before`, which goes on answering what it has begun.
        """
        self.config = config
        self.settings = settings
        self.fleet: Fleet = make_fleet(
            config, os.environ, workers=settings.workers, before=None if before is None else before.fleet
        )
        self.router = _make_router(config, settings)
        self.pair_shares = PairShares() if config.pairs is None else PairShares.read(config.pairs)
        self.routable = [model.name for model in config.routed_models()]
        """Models that requests may be routed to: all, until the model list of P2L is known."""
        self.chat_models = frozenset(self.routable)
        """Models that `direct_model` may name."""
        prices = [model.price for model in config.model_configs.values()]
        self.has_caches = any(price and price.cached is not None for price in prices)
        """Whether a model has a price for prompts in its provider's cache."""
        if config.newcomers:
            known = None if before is None else before.router.offsets
            self.router.offsets = Offsets(self.router.menu, np.random.default_rng(), known)
        scorers = {} if before is None else before.policy_scorers
        self.policy_scorers: dict[str, Scorer] = scorers or _make_scorers(config, self.router)
        """By the `p2l` of a policy; they outlive a configuration."""
        self.experiments, self.shadow = _make_policies(config, settings, self.router, self.policy_scorers)
        self.shadow_file = None if config.shadow is None else config.shadow.pairs
        self.refusals = Refusals()
        self.spending: Spending = Spending(
            self.router.menu, config.budget_usd, None if before is None else before.spending
        )
        if before is None:
            self._make_parts()
            self._share()
        else:
            for part in _PARTS_KEPT:
                setattr(self, part, getattr(before, part))
        self.answer_cache = _make_cache(config)
        self.hooks = Hooks(config.hooks, self.metrics, self.hook_calls)
        self.dispatcher = Dispatcher(self.fleet, config, self.ledger, self.metrics, self.refusals)

    def _make_parts(self) -> None:
        config, settings = self.config, self.settings
        self.started = int(time.time())
        self.metrics = RouterMetrics()
        self.recent = Recent()
        self.hook_calls = HookCalls()
        self.scorer = make_scorer(
            self.router.kind,
            endpoint=settings.router_model_endpoint,
            api_key=settings.router_api_key,
            path=settings.router_model_name,
            on_models=self.limit_to,
        )
        self.scorer.configure(self.router.menu.names)
        self.key_judge = KeyJudge("operators", LOGGER)
        self.ended_sessions = EndedSessions(None if settings.peers is None else Path(settings.peers))
        self.tracing = None if settings.traces is None else Tracing(settings.traces, prompts=settings.trace_prompts)
        self.database: Database = open_database(settings.database or config.database)
        self.peers = Peers(None if settings.peers is None else Path(settings.peers))
        self.counts = SharedCounts(self.peers, "deployments")
        self.ledger: Ledger = Ledger(
            key_records(config, settings),
            self.database,
            teams={name: team.spend_per_day for name, team in config.teams.items()},
            budgets=budgets_of(config),
            shared_limits=config.shared_limits,
            without_shared=config.without_shared_limits,
            peers=self.peers,
            notes=None if config.database is None or config.journal is None else calls_folder(config.journal),
        )
        self.keys = StoredKeys(self.database, self.ledger)
        self.finishing: set[asyncio.Task[None]] = set()
        """Requests of clients that have left; their answers are awaited, since they have to be paid."""
        journal = Journal(config.journal) if self.database.is_remote and config.journal is not None else None
        self.feedback = Feedback(self.database, store_prompts=config.store_prompts, journal=journal)
        self.visitors = Visitors(self.database, time.time)
        self.sticky = Sticky(self.database)
        self.average = Average(self.database)
        self.responses = ResponseStore(
            self.database,
            enabled=config.database is not None and config.store_responses,
            most_mb=config.responses_mb_per_key,
        )

    def take_over(self, before: Service) -> None:
        """Let the parts that outlive a configuration follow this one; nothing of it can fail."""
        config = self.config
        self.fleet.go_on_from(before.fleet)
        self._share()
        teams = {name: team.spend_per_day for name, team in config.teams.items()}
        self.ledger.replace_keys(key_records(config, self.settings), teams, budgets_of(config))
        self.feedback.store_prompts = config.store_prompts
        self.responses.enabled = config.database is not None and config.store_responses
        self.responses.most_mb = config.responses_mb_per_key
        self.scorer.configure(self.router.menu.names)
        self.scorer.on_models = self.limit_to

    def _share(self) -> None:
        """Tell the other workers of the machine what cannot wait for the database, and hear it of them."""
        peers, offsets = self.peers, self.router.offsets
        self.fleet.share(peers, self.counts)
        if offsets is None:
            return
        # A rating moves the offsets of every worker, whichever gave the answer and whichever got the rating: one that
        # did not give the answer asks who did, and that one says what P2L expected of the answer.
        offsets.on_rating = lambda gaps, verdict: peers.tell("rating", [gaps, verdict])
        offsets.on_unknown = lambda request_id, verdict: peers.tell("vote", [request_id, verdict])
        peers.on("vote", lambda _, body: offsets.rate(*body, ask=False))
        peers.on("rating", lambda _, body: offsets.take(*body))
        # A worker that starts takes over what the others believe.
        peers.on("hello", lambda worker, _: peers.tell("beliefs", offsets.beliefs(), to=worker))
        peers.on("beliefs", lambda _, body: offsets.begin_with(body))

    async def start(self) -> None:
        """Open the database and start the scorer."""
        unbound = [name for name, model in self.config.model_configs.items() if not model.is_bound]
        has_budgets = bool(self.config.budgets) or any(
            key.spend_per_day is not None or key.team for key in self.config.keys
        )
        if unbound and has_budgets:
            LOGGER.warning(
                "answers of %s have at most %d tokens within budgets of spend; longest_answer lets them have more",
                ", ".join(unbound),
                UNKNOWN_LONGEST,
            )
        await self.database.start()
        for buffer in (self.ledger, self.keys, self.feedback, self.visitors, self.sticky, self.average):
            await buffer.start()
        await self.scorer.start()
        for scorer in self.policy_scorers.values():
            await scorer.start()
        await self.peers.start()
        if self.ledger.notes.folder is not None:
            task = asyncio.ensure_future(
                book_left_calls(self.ledger.notes.folder, self.database, self.ledger, self.fleet)
            )
            self.finishing.add(task)
            task.add_done_callback(self.finishing.discard)

    async def close(self) -> None:
        """Write what has gathered and close every connection."""
        for task in self.finishing:
            task.cancel()
        await asyncio.gather(*self.finishing, return_exceptions=True)
        # Buffers before the database that they write to.
        await self.peers.close()
        await self.average.close()
        await self.ledger.close()
        await self.feedback.close()
        await self.database.close()
        self.ledger.notes.close(is_booked=self.database.fault is None)
        for scorer in (self.scorer, *self.policy_scorers.values()):
            await scorer.close()
        await self.fleet.close()
        await self.hook_calls.close()
        if self.answer_cache is not None:
            await self.answer_cache.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    async def authenticate(self, headers: Mapping[str, str]) -> KeyRecord:
        """Return the record of a request's key; raise `ApiError` 401 without a key, or with a wrong one."""
        record = await self.keys.check(key_of(headers))
        if isinstance(record, Refusal):
            raise of_refusal(record)
        return record

    def enter(self, answer: Answer, key: KeyRecord) -> None:
        """Count a request of a key as under way until `keep`; raise `ApiError` 429 for one too many."""
        answer.key = key
        refusal = self.ledger.enter(key)
        if refusal is not None:
            raise of_refusal(refusal)
        answer.is_counted = True

    @property
    def fallback(self) -> str:
        """Return what decides without scores, one of `FALLBACKS`."""
        average, order, dearest = FALLBACKS
        if self.config.static_order:
            return order
        return dearest if self.average.coefficients is None else average

    async def vote(self, vote: Vote, key: KeyRecord, *, visitors: VoteLimits = NO_LIMITS) -> StoredVote | Refusal:
        """Store a vote of a key on an earlier answer, and let it move the models' offsets."""
        limits = replace(visitors, of_key=key.votes_per_day)
        stored = await self.feedback.vote(vote, key=key.name, limits=limits)
        if isinstance(stored, StoredVote):
            LOGGER.info("vote", extra={"fields": {"request_id": stored.request_id, "verdict": stored.verdict}})
            if not stored.pending and self.router.offsets is not None:
                self.router.offsets.rate(stored.request_id, stored.verdict)
        return stored

    def observe(self) -> None:
        """Set the gauges."""
        self.metrics.scored.set(self.scorer.is_well)
        self.metrics.database.set(self.database.fault is None)
        self.metrics.limits.set(self.ledger.shared is None or self.ledger.shared.fault is None)
        self.metrics.waiting_votes.set(0 if self.feedback.journal is None else self.feedback.journal.waiting)
        self.metrics.evicted_responses.set(self.responses.evicted)
        for deployment in self.fleet.deployments:
            state = ("closed", "half_open", "open").index(deployment.breaker.state)
            self.metrics.breakers.labels(deployment.name, deployment.label).set(state)

    def limit_to(self, model_list: Sequence[str]) -> None:
        """Route only to models that P2L knows or that have a prior coefficient."""
        unknown = self.router.unknown(model_list)
        offsets, names = self.router.offsets, ", ".join(unknown)
        if offsets is not None:
            offsets.limit(unknown)
            if unknown:
                LOGGER.warning("P2L does not know %s: they are explored until ratings say how good they are", names)
        elif unknown:
            LOGGER.warning(
                "P2L does not know %s: only direct_model reaches them; newcomers or a prior_coef makes them routable",
                names,
            )
        # With offsets an unknown model is explored; without, nothing says how good it is.
        left_out = unknown if offsets is None else []
        self.routable = [model.name for model in self.config.routed_models() if model.name not in left_out]


def key_records(config: RouterConfig, settings: Settings) -> list[KeyRecord]:
    """Return the keys of the command and of the configuration."""
    unlimited = [KeyRecord(name=f"key-{digest[:12]}", digest=digest) for digest in settings.api_keys]
    return [*unlimited, *(key_record(**key.model_dump()) for key in config.keys)]


def _make_cache(config: RouterConfig) -> AnswerCache | None:
    place = config.answer_cache
    if place is None:
        return None
    return AnswerCache(place.where, seconds=place.seconds, most_mb=place.max_mb, across_keys=place.across_keys)


def budgets_of(config: RouterConfig) -> list[Budget]:
    """Return the budgets of the configuration beside those of keys and teams."""
    return [Budget(**budget.model_dump()) for budget in config.budgets]


def _make_router(config: RouterConfig, settings: Settings, optimizer: str | None = None) -> Router:
    """Build the router of a configuration; raise ConfigError if type, optimizer and limits do not fit."""
    return Router(
        config.routed_models(),
        kind=settings.router_type,
        optimizer=optimizer or settings.cost_optimizer,
        opponents=config.opponent_weights,
        limits=config.routed_limits(),
        static_order=config.static_order,
        explore=config.explore,
        guard=None if config.guard is None else config.guard.routed(),
        rng=np.random.default_rng(),
    )


def _make_scorers(config: RouterConfig, router: Router) -> dict[str, Scorer]:
    """Build the scorers of policies with a P2L of their own, without starting them."""
    scorers = {}
    for place, policy in policies_in(config.experiments, config.shadow).items():
        if policy.p2l is not None and policy.p2l not in scorers:
            is_url = policy.p2l.startswith(("http://", "https://"))
            kind = get(f"{router.kind.family}-{'endpoint' if is_url else 'local'}")
            try:
                key = None if policy.p2l_api_key is None else filled(policy.p2l_api_key)
            except ValueError as error:
                raise ConfigError(f"{place}.p2l_api_key: {error}") from error
            scorers[policy.p2l] = make_scorer(kind, endpoint=policy.p2l, api_key=key, path=policy.p2l)
    return scorers


def _make_policies(
    config: RouterConfig, settings: Settings, router: Router, scorers: Mapping[str, Scorer]
) -> tuple[tuple[Experiment, ...], Policy | None]:
    """Build the policies of experiments, and that of the shadow; raise ConfigError for an optimizer that does not fit.

    They share what ratings say, and the router where they have no optimizer of their own.
    """

    def policy(name: str, place: str, entry: PolicyConfig) -> Policy:
        its_router = router
        if entry.cost_optimizer is not None:
            try:
                its_router = _make_router(config, settings, entry.cost_optimizer)
            except ConfigError as error:
                raise ConfigError(f"{place}.cost_optimizer: {error}") from error
            its_router.offsets = router.offsets
        models = None if entry.models is None else frozenset(entry.models)
        return Policy(name, its_router, entry.budget, models, scorers.get(entry.p2l or ""))

    experiments = []
    for name, entry in config.experiments.items():
        policies = [policy(arm, f"experiments.{name}.policies.{arm}", each) for arm, each in entry.policies.items()]
        whole = sum(arm.share for arm in entry.policies.values())
        experiment = Experiment(
            name=name,
            policies=tuple(policies),
            shares=tuple(arm.share / whole for arm in entry.policies.values()),
            by_conversation=entry.by == "conversation",
            keys=None if entry.keys is None else frozenset(entry.keys),
            ends=entry.ends,
        )
        experiments.append(experiment)
    shadow = None if config.shadow is None else policy(SHADOW, SHADOW, config.shadow)
    return tuple(experiments), shadow


def check_together(config: RouterConfig, settings: Settings) -> None:
    """Raise ConfigError, with the flag or the line of the configuration, if the two do not go together."""
    kind = get(settings.router_type)
    pair(kind, settings.cost_optimizer)
    if kind.source == "local" and not settings.router_model_name:
        raise ConfigError(f"--router-type {settings.router_type} needs --router-model-name FOLDER")
    with _naming_the_line(settings.config):
        make_fleet(config, os.environ)  # opens nothing yet
        Hooks(config.hooks, None, HookCalls())
        router = _make_router(config, settings)
        _make_policies(config, settings, router, _make_scorers(config, router))
        if config.pairs is not None:
            PairShares.read(config.pairs)


def check_providers(config: RouterConfig, path: str) -> None:
    """Raise ConfigError, with the line of the configuration at `path`, for a model whose provider cannot be used."""
    with _naming_the_line(path):
        make_fleet(config, os.environ)


@contextmanager
def _naming_the_line(path: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        # The key that is wrong comes first: `model_configs.NAME: ...`, `limits need ...`, `explore must ...`.
        place = re.split(r": | (?=need|must)", str(error))[0].split(".")
        line = f":{line_of(path, place) or 1}" if place[0] in RouterConfig.model_fields else ""
        raise ConfigError(f"{path}{line}: {error}") from error
