"""Feedback: the answers that were shown, and the votes on them.

An answer is kept for a day after it was written; a vote on it names its request, by an identifier that is signed. A
request with `compare: true` shows the answers of two models, and a vote on it is a vote of P2L's schema: `p2l
export-votes` writes those. Thumbs on a single answer are kept too, but compare nothing, so they cannot be trained on.
Prompts are kept only with `store_prompts: true`, and without a vote they are gone after the day.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from p2l.common.errors import InputError
from p2l.common.long_texts import dumps
from route.keep.database import Connection, Database, DatabaseError, WriteBehind
from route.keep.failover import KEPT_SECONDS as KEPT_ACKNOWLEDGED_SECONDS
from route.keep.journal import Entry, Journal, JournalError, JournalQuotaError
from route.keep.ledger import Refusal
from route.keep.usage import DAY
from route.keep.visitors import Visitor, battles_of

_VERDICTS = ("first", "second", "tie", "both_bad", "up", "down")
"""The first four compare two answers, the last two are thumbs on one."""
KEPT_SECONDS = 86_400
"""Seconds in which an answer can be voted on; without a vote it is forgotten then."""
_OF_TWO = frozenset(_VERDICTS[:4])
_MEANING: dict[str, dict[str | int, str]] = {
    "thumbs": {"up": "up", "down": "down"},
    "better": {0: "first", 1: "second", "tie": "tie", "both_bad": "both_bad"},
}
_CHOICES = {"thumbs": '"up" or "down"', "better": '0 or 1 (the choice\'s index), "tie" or "both_bad"'}
_LONGEST_ID = 200
_ID_PREFIX = "req-"
_MARK_LETTERS = 16  # of a signature: 64 bits, which nobody guesses over a network
_ROUNDING = 1e-9  # a sum of probabilities may exceed 1 by as much
_COME_AGAIN = 5.0  # seconds
_DELIVERY_SECONDS = 0.5  # between two looks at the journal
# Between two rounds through votes whose answers nobody has written: each finds nothing, until a router is back.
_LONGEST_ROUND_SECONDS = 60.0
_WAITS = (2, 4, 8)
"""Flushes between two looks for an answer that is not there, 1.4 s in all."""
_LOGGER = logging.getLogger("route")
_MOST_WAITING = 100_000
_MOST_RECENT = 10_000  # votes that a server which takes another's place is asked for
_MOST_FORGOTTEN = 1_000  # in one transaction, so that none takes long
COLUMNS = (
    "request_id, time, key, model_a, model_b, version_a, version_b, propensity, revision, prompt, visitor, prefix, "
    "identity_revealed"
)
"""Columns that the tables `answers` and `votes` share."""
_NUMBER_OF_COLUMNS = COLUMNS.count(",") + 1


def _marks(number: int) -> str:
    return ", ".join("?" * number)


_REPLACED = ", ".join(f"{name} = excluded.{name}" for name in (*COLUMNS.split(", ")[1:], "stored"))
_INSERT = (
    f"INSERT INTO answers ({COLUMNS}, stored) VALUES ({_marks(_NUMBER_OF_COLUMNS + 1)}) ON CONFLICT (request_id) DO"
)
_IS_KNOWN = "SELECT 1 FROM answers WHERE request_id = ? UNION ALL SELECT 1 FROM votes WHERE request_id = ?"
_UNWRITABLE = Refusal(503, "unavailable", "votes cannot be stored now; send it again later", _COME_AGAIN)
_NO_ANSWER = Refusal(404, "answer_not_found", "no answer of the last day with this request_id was given to this key")
_Row: TypeAlias = tuple[Any, ...]
"""A row of the table `answers`, in the order of COLUMNS; the prompt as its turns."""
_PROMPT = COLUMNS.split(", ").index("prompt")
_PREFIX = COLUMNS.split(", ").index("prefix")


@dataclass(frozen=True)
class ShownAnswer:
    """The answer, or the two answers, to one request."""

    request_id: str
    key: str
    """Name of the key of the request: no other may vote on it."""
    models: tuple[str, ...]
    """One model, or the two of `compare: true` in the order of the choices."""
    propensity: float
    """Probability that this model, or this pair in either order, was shown."""
    versions: tuple[str, ...] = ()
    """Versions of the models, in the same order; "" where none is configured."""
    revision: str = ""
    """Revision of the P2L model that chose."""
    prompt: Sequence[str] | None = None
    """The user's turns; stored only with `store_prompts`."""
    visitor: Visitor | None = None
    """Who began the battle of the arena; None: not a visitor, but whoever has the key."""
    identity_revealed: bool | None = None
    """Whether an answer names its model or maker; None: nobody looked."""


@dataclass(frozen=True)
class VoteLimits:
    """How often may be voted."""

    of_key: int | None = None
    """Answers that the key may vote on in a day."""
    of_prefix: int | None = None
    """Answers that the visitors of one address prefix may vote on in a day."""
    once: bool = False
    """Whether a second vote on an answer is refused, and so is every vote while the database is gone."""


@dataclass(frozen=True)
class Vote:
    """The body of `POST /v1/feedback`."""

    request_id: str
    verdict: str
    """One of _VERDICTS."""


@dataclass(frozen=True)
class StoredVote:
    """A vote that is on the disk, as the client sees it."""

    request_id: str
    verdict: str
    models: tuple[str, ...]
    """Who answered, in the order shown; revealed by the vote."""
    replaced: bool
    """Whether it changed an earlier vote on this request."""
    pending: bool = False
    """Whether it waits on this router's disk for the database's server: who answered is not known yet."""


NO_LIMITS = VoteLimits()


class RequestIds:
    """Identifiers of requests, which say when they were made, and that a router with the same database made them."""

    def __init__(self, secret: bytes, clock: Callable[[], float]) -> None:
        """Sign with a secret; `clock` returns seconds since 1970."""
        own = hmac.new(secret, b"request identifiers", hashlib.sha256).digest()
        self._marker = hmac.new(own, digestmod=hashlib.sha256)  # copies of which save setting up a key each time
        self._clock = clock

    def new(self) -> str:
        """Return a new identifier."""
        text = f"{_ID_PREFIX}{int(self._clock()):08x}{os.urandom(8).hex()}"
        return text + self._mark(text)

    def token(self, request_id: str, cookie: str) -> str:
        """Return what lets the visitor with this cookie vote on what was shown to him under an identifier."""
        return f"{request_id}.{self._mark(f'{request_id} {cookie}')}"

    def shown_to(self, token: str, cookie: str) -> str | None:
        """Return the identifier of a token; None for one that was invented, or is another visitor's."""
        request_id = token.partition(".")[0]
        is_right = hmac.compare_digest(token.encode(), self.token(request_id, cookie).encode())
        return request_id if is_right else None

    def made_at(self, request_id: str) -> float | None:
        """Return when an identifier was made, in seconds since 1970; None for one that was invented."""
        text, mark = request_id[:-_MARK_LETTERS], request_id[-_MARK_LETTERS:]
        if not hmac.compare_digest(mark.encode(), self._mark(text).encode()):
            return None
        return float(int(text[len(_ID_PREFIX) :][:8], 16))

    def _mark(self, text: str) -> str:
        marker = self._marker.copy()
        marker.update(text.encode())
        return marker.hexdigest()[:_MARK_LETTERS]


class NoVoteError(InputError):
    """The body is not a vote."""

    def __init__(self, message: str, field: str | None) -> None:
        """Fail with a message; `field` is the one at fault, if it is one."""
        super().__init__(message)
        self.field = field


def parse_vote(body: Mapping[str, Any]) -> Vote:
    """Parse `{"request_id": ..., "thumbs": "up" | "down"}` or `{"request_id": ..., "better": ...}`.

    `better` is the index of the better choice, 0 or 1, or "tie" or "both_bad". Raises NoVoteError for anything else.
    """
    unknown = sorted(set(body) - {"request_id", "thumbs", "better"})
    if unknown:
        text = f"unknown field {unknown[0]!r}; a vote has request_id and either thumbs or better"
        raise NoVoteError(text, unknown[0])
    request_id = body.get("request_id")
    if not (isinstance(request_id, str) and 0 < len(request_id) <= _LONGEST_ID and request_id.isascii()):
        raise NoVoteError("request_id must be the text of the answer's x-request-id", "request_id")
    choices = [(field, body[field]) for field in ("thumbs", "better") if body.get(field) is not None]
    if len(choices) != 1:
        raise NoVoteError("a vote has either thumbs or better", None)
    field, word = choices[0]
    # True would be the choice 1, and a list cannot be looked up.
    verdict = None if isinstance(word, bool) or not isinstance(word, str | int) else _MEANING[field].get(word)
    if verdict is None:
        raise NoVoteError(f"{field} must be {_CHOICES[field]}", field)
    return Vote(request_id, verdict)


class Feedback(WriteBehind):
    """Answers and votes; used from one event loop."""

    def __init__(
        self,
        database: Database,
        *,
        store_prompts: bool = False,
        journal: Journal | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Write to `database`, and to `journal` while its server is gone; `clock` returns seconds since 1970, UTC."""
        super().__init__(database, clock)
        self.journal = journal
        self._journaled: set[str] = set()  # answers that are in the journal already
        self._tasks: set[asyncio.Task[None]] = set()
        self.store_prompts = store_prompts
        self.ids = RequestIds(secrets.token_bytes(32), clock)
        """Identifiers of requests; from the start with the secret of the database."""
        self._trial: asyncio.Future[Any] | None = None
        self._gathered: list[_Row] = []
        self._recent: deque[tuple[float, Entry]] = deque(maxlen=_MOST_RECENT)
        """Votes that were stored of late, and answers from the journal; with when that was."""
        self._unanswered: list[Entry] = []
        """Votes whose answers a new server lacks."""

    def remember(self, answer: ShownAnswer) -> None:
        """Remember an answer, without waiting; its prompt is dropped here unless prompts are stored.

        While the database cannot be written, the newest 100,000 are kept. Raises ValueError for an answer that shows
        neither one model nor two different ones, or whose propensity is not a probability above 0.
        """
        if len(answer.models) not in (1, 2) or len(set(answer.models)) < len(answer.models):
            raise ValueError(f"an answer shows one model or two different ones, not {answer.models}")
        if not 0 < answer.propensity <= 1 + _ROUNDING:
            raise ValueError(f"propensity is {answer.propensity!r}; it must be above 0 and at most 1")
        if len(self._gathered) >= 2 * _MOST_WAITING:
            del self._gathered[:_MOST_WAITING]  # all at once, since each removal moves the rest
        first, second = (*answer.models, None)[:2]
        version_a, version_b = (version or None for version in (*answer.versions, "", "")[:2])
        shown = (answer.request_id, self._clock(), answer.key, first, second, version_a, version_b)
        prompt = answer.prompt if self.store_prompts else None
        visitor = (None, None) if answer.visitor is None else (answer.visitor.name, answer.visitor.prefix)
        revealed = None if answer.identity_revealed is None else int(answer.identity_revealed)
        decided = min(answer.propensity, 1.0), answer.revision
        self._gathered.append((*shown, *decided, prompt, *visitor, revealed))

    async def vote(self, vote: Vote, *, key: str, limits: VoteLimits = NO_LIMITS) -> StoredVote | Refusal:
        """Store a vote within limits; it is on the disk when this returns.

        A request has one vote, however often it is sent: the same vote again changes nothing, another one takes the
        place of the first, or is refused with 409 where there may be only `once`. Refuses with 404 where the key `key`
        got no such answer within a day, with 400 thumbs on two answers and a choice on one, with 429 whoever has voted
        as often today as he may, with 503 while the database cannot be written and there is no journal, or no room.
        """
        try:
            if not await self._database.flush():  # the answer may be among what could not be written
                return await self._keep_for_later(vote, key, limits)
            stored = await self._store(vote, key, limits)
            waits = _WAITS if self.ids.made_at(vote.request_id) is not None else ()  # nobody writes an invented one
            for flushes in waits:  # another worker may be about to write the answer, later where much is to be done
                if not isinstance(stored, Refusal) or stored.status != 404:
                    break
                await asyncio.sleep(flushes * self._database.flush_seconds)
                # The other worker cannot write where this one cannot: something has to be written to know. Votes that
                # wait at once share one write.
                if self._trial is None or self._trial.done():
                    write = self._database.run(
                        lambda connection: connection.execute("UPDATE clock SET flush = flush + 1")
                    )
                    self._trial = asyncio.ensure_future(write)
                await asyncio.shield(self._trial)
                stored = await self._store(vote, key, limits)
            if isinstance(stored, StoredVote):
                self._keep_recent([Entry(0, "vote", [vote.request_id, vote.verdict, key, self._clock()])])
            return stored
        except DatabaseError:
            return await self._keep_for_later(vote, key, limits)

    async def _keep_for_later(self, vote: Vote, key: str, limits: VoteLimits) -> StoredVote | Refusal:
        """Store a vote in the journal; what can be checked without the database is."""
        # Whether it is the first vote on an answer is known to the database alone.
        if self.journal is None or limits.once:
            return _UNWRITABLE
        now, made_at = self._clock(), self.ids.made_at(vote.request_id)
        row = next((row for row in reversed(self._gathered) if row[0] == vote.request_id), None)
        if row is None and (made_at is None or made_at < now - KEPT_SECONDS):
            return _NO_ANSWER
        refusal = None if row is None else _misfit(row, vote, key, now)
        if refusal is not None:
            return refusal
        # With its answer, which is else in memory alone until the next flush has failed.
        answer = None if row is None else lambda: _storable(row)
        try:
            await self.journal.add_vote([vote.request_id, vote.verdict, key, now], answer, limits.of_key)
        except JournalQuotaError as error:
            return Refusal(429, "rate_limit_exceeded", str(error), DAY - now % DAY)
        except JournalError as error:
            _LOGGER.error("a vote cannot be kept in the journal: %s", error)
            return _UNWRITABLE
        return StoredVote(vote.request_id, vote.verdict, (), replaced=False, pending=True)

    async def start(self) -> None:
        """Open the journal, and deliver what waits in it from now on."""
        query = "SELECT secret FROM voters"
        secret = await self._database.read(lambda connection: connection.execute(query).fetchone()[0])
        self.ids = RequestIds(bytes(secret), self._clock)
        if self.journal is not None:
            await self.journal.start()
            self._begin(self._deliver_always(self.journal))
        await super().start()

    async def close(self) -> None:
        """Write what has gathered, and close the journal; the database stays open."""
        await super().close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.journal is not None:
            await self.journal.close()

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver_always(self, journal: Journal) -> None:
        """Deliver what waits in the journal, oldest first, whenever the database can be written."""
        # A vote whose answer nobody has written waits for the router that has it in memory, however long that is away:
        # rounds that deliver nothing become rarer.
        clock, pause, due, additions = asyncio.get_running_loop().time, 0.0, 0.0, -1
        while True:
            if self._database.fault is not None or journal.additions != additions:
                pause = due = 0.0
            if self._database.fault is None and not journal.is_empty and clock() >= due:
                additions = journal.additions
                pause = 0.0 if await self._deliver_all(journal) else min(2 * pause + 0.5, _LONGEST_ROUND_SECONDS)
                due = clock() + pause
            await asyncio.sleep(_DELIVERY_SECONDS)

    async def _deliver_all(self, journal: Journal) -> bool:
        """Deliver what can be; return whether something left the journal."""
        after, unknown, has_moved = ("", 0), 0, False
        while self._database.fault is None and (entries := await journal.next(after)):
            after = entries[-1].kind, entries[-1].number
            try:
                delivery = await self._database.run(partial(_deliver, entries=entries, now=self._clock()))
            except DatabaseError:
                return has_moved
            # A kill here delivers the entries once more, which changes nothing.
            await journal.forget(delivery.stored + delivery.unfit)
            self._keep_recent(delivery.stored)
            has_moved = has_moved or bool(delivery.stored or delivery.unfit)
            unknown += len(delivery.unknown)
            votes = sum(entry.kind == "vote" for entry in delivery.stored)
            if votes or delivery.unfit:
                fields = {"delivered": votes, "refused": len(delivery.unfit)}
                _LOGGER.warning("votes that waited for the database", extra={"fields": fields})
        if unknown and has_moved:
            _LOGGER.warning("%d votes wait for answers that no router has written yet", unknown)
        return has_moved

    async def _store(self, vote: Vote, key: str, limits: VoteLimits) -> StoredVote | Refusal:
        now = self._clock()
        return await self._database.run(lambda connection: _store_vote(connection, vote, key, now, limits))

    def take(self) -> list[_Row]:
        """See `WriteBehind`."""
        batch, self._gathered = self._gathered, []
        return batch

    def write(self, connection: Connection, batch: list[_Row]) -> None:
        """See `WriteBehind`."""
        now = self._clock()
        rows = ((*_storable(row), now) for row in batch)
        connection.executemany(f"{_INSERT} UPDATE SET {_REPLACED}", rows)
        # A day after it was written: votes that waited for the database, like the answer, have to find it.
        connection.execute(
            "DELETE FROM answers WHERE request_id IN (SELECT request_id FROM answers "
            "WHERE time < ? AND coalesce(stored, time) < ? ORDER BY time LIMIT ?)",
            (now - KEPT_SECONDS, now - KEPT_SECONDS, _MOST_FORGOTTEN),
        )

    def give_back(self, batch: list[_Row]) -> None:
        """See `WriteBehind`; the journal has the answers too, so that votes on them outlive a kill."""
        self._gathered = (batch + self._gathered)[-_MOST_WAITING:]
        new = [row for row in batch if row[0] not in self._journaled]
        if self.journal is not None and new:
            self._journaled.update(row[0] for row in new)
            self._begin(self._keep_answers(self.journal, new))

    def absorb(self, _news: None) -> None:
        """See `WriteBehind`: what had gathered is in the database."""
        self._journaled.clear()
        unanswered, self._unanswered = self._unanswered, []
        if unanswered:
            self._begin(self._await_answers(unanswered))

    def size(self, batch: list[_Row]) -> int:
        """See `WriteBehind`."""
        return sum(len(turn) for row in batch for turn in row[_PROMPT] or ())

    def _keep_recent(self, entries: Sequence[Entry]) -> None:
        """Keep what the server has acknowledged, for one that takes its place and is behind."""
        now = time.monotonic()
        while self._recent and self._recent[0][0] < now - KEPT_ACKNOWLEDGED_SECONDS:
            self._recent.popleft()
        self._recent.extend((now, entry) for entry in entries)

    def recover(self, connection: Connection, _batch: Sequence[_Row] | None) -> int:
        """See `WriteBehind`: votes, and answers of an outage before; what is there already changes nothing."""
        recent = list(self._recent)
        if len(recent) == _MOST_RECENT and recent[0][0] > time.monotonic() - KEPT_ACKNOWLEDGED_SECONDS:
            _LOGGER.error(
                "the last %d votes are looked for in the database, which may lack others of the last %.0f minutes",
                *(_MOST_RECENT, KEPT_ACKNOWLEDGED_SECONDS / 60),
            )
        entries = [entry for _, entry in recent]
        wanting = [entry for entry in entries if entry.kind == "answer" or not _is_stored(connection, entry)]
        delivery = _deliver(connection, entries=wanting, now=self._clock())
        self._unanswered = delivery.unknown
        return sum(entry.kind == "vote" for entry in delivery.stored)

    async def _await_answers(self, entries: Sequence[Entry]) -> None:
        """Let votes wait in the journal for the worker that writes their answers again."""
        for entry in entries:
            with contextlib.suppress(JournalError, JournalQuotaError):
                if self.journal is not None:
                    await self.journal.add_vote(entry.row)
                    continue
            _LOGGER.error("a vote is lost with the database's server, and there is no room for it in the journal")

    @staticmethod
    async def _keep_answers(journal: Journal, rows: list[_Row]) -> None:
        with contextlib.suppress(JournalError):  # they are in memory as well
            await journal.add_answers(lambda: [_storable(row) for row in rows])


def _storable(row: _Row) -> _Row:
    """Return a row with the turns of its prompt as JSON; in the thread, since they may be long."""
    turns: Sequence[str] | None = row[_PROMPT]
    # JSON can hold half a surrogate pair, and no text file can.
    text = dumps([turn.encode("utf-8", "replace").decode() for turn in turns]) if turns else None
    return (*row[:_PROMPT], text, *row[_PROMPT + 1 :])


class _Delivery(NamedTuple):
    """What became of entries of a journal."""

    stored: list[Entry]
    unfit: list[Entry]
    """Votes on an answer of another key, or of another kind than the answer asks for."""
    unknown: list[Entry]
    """Votes on answers that are not written yet."""


def _deliver(connection: Connection, *, entries: Sequence[Entry], now: float) -> _Delivery:
    """Store entries of a journal, in a transaction."""
    delivery = _Delivery([], [], [])
    for entry in entries:
        if entry.kind == "answer":
            # An earlier version wrote fewer columns into its journal.
            missing = [None] * (_NUMBER_OF_COLUMNS - len(entry.row))
            connection.execute(f"{_INSERT} NOTHING", (*entry.row, *missing, now))
            delivery.stored.append(entry)
            continue
        request_id, verdict, key, when = entry.row[:4]
        # How often its key may vote was checked when it voted: what was acknowledged is stored.
        stored = _store_vote(connection, Vote(request_id, verdict), key, when, NO_LIMITS, is_late=True)
        if not isinstance(stored, Refusal):
            delivery.stored.append(entry)
        elif connection.execute(_IS_KNOWN, (request_id, request_id)).fetchone() is None:
            delivery.unknown.append(entry)
        else:
            delivery.unfit.append(entry)
    return delivery


def _is_stored(connection: Connection, entry: Entry) -> bool:
    """Return whether a vote of a journal, or a later one in its place, is in the database."""
    request_id, verdict, _, when = entry.row[:4]
    query = "SELECT 1 FROM votes WHERE request_id = ? AND (verdict = ? OR voted > ?)"
    return connection.execute(query, (request_id, verdict, when)).fetchone() is not None


def _misfit(row: Sequence[Any] | None, vote: Vote, key: str, now: float) -> Refusal | None:
    """Return the refusal of a vote that does not fit the answer, or None."""
    if row is None or row[2] != key or row[1] < now - KEPT_SECONDS:
        return _NO_ANSWER
    is_pair = row[4] is not None
    if is_pair != (vote.verdict in _OF_TWO):
        advice = "two answers: say which was better" if is_pair else "one answer: give thumbs"
        return Refusal(400, "wrong_kind_of_vote", f"this request showed {advice}")
    return None


def _store_vote(
    connection: Connection, vote: Vote, key: str, now: float, limits: VoteLimits, *, is_late: bool = False
) -> StoredVote | Refusal:
    """Store a vote, given at `now`; one that comes late does not replace what came after it."""
    connection.lock("votes")  # so that their numbers are in the order in which they can be read
    before = connection.execute(
        f"SELECT {COLUMNS}, verdict, voted FROM votes WHERE request_id = ?", (vote.request_id,)
    ).fetchone()
    fresh = f"SELECT {COLUMNS} FROM answers WHERE request_id = ? AND time >= ?"
    row = before or connection.execute(fresh, (vote.request_id, now - KEPT_SECONDS)).fetchone()
    misfit = _misfit(row, vote, key, now)
    if misfit is not None:
        return misfit
    models = tuple(model for model in row[3:5] if model is not None)
    if before is None:
        refusal = _too_many(connection, row, limits, now)
        if refusal is not None:
            return refusal
        battles = [battles_of(connection, pseudonym) for pseudonym in row[_PREFIX - 1 : _PREFIX + 1]]
        connection.execute(
            f"INSERT INTO votes ({COLUMNS}, verdict, voted, visitor_battles, prefix_battles) "
            f"VALUES ({_marks(_NUMBER_OF_COLUMNS + 4)})",
            (*row, vote.verdict, now, *battles),
        )
    elif limits.once:
        return Refusal(409, "already_voted", "this answer has its vote already; ask for another pair")
    elif before[-2] != vote.verdict and not (is_late and before[-1] > now):
        # In its row: a row that moved would be another vote to whoever follows the table.
        changed = "UPDATE votes SET verdict = ?, voted = ? WHERE request_id = ?"
        connection.execute(changed, (vote.verdict, now, vote.request_id))
    replaced = before is not None and before[-2] != vote.verdict
    return StoredVote(vote.request_id, vote.verdict, models, replaced=replaced)


def _too_many(connection: Connection, row: _Row, limits: VoteLimits, now: float) -> Refusal | None:
    """Return the refusal of a vote beyond those of a day, or None."""
    midnight = now - now % DAY  # UTC
    for column, value, most, whose in (
        ("key", row[2], limits.of_key, "this API key"),
        ("prefix", row[_PREFIX], limits.of_prefix, "visitors of one network"),
    ):
        if most is None or value is None:
            continue
        votes_today = f"SELECT count(*) FROM votes WHERE {column} = ? AND voted >= ?"
        if connection.execute(votes_today, (value, midnight)).fetchone()[0] >= most:
            message = f"{whose} may vote on {most} answers a day; the next day begins at midnight, UTC"
            return Refusal(429, "rate_limit_exceeded", message, midnight + DAY - now)
    return None
