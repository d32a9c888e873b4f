"""The clients of an endpoint, against real servers on loopback: what they ask, what they repeat, how they fail."""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
import shutil
import ssl
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2l.client import AsyncP2LClient, Health, ModelAnswer, ModelList, P2LClient, RankedModel
from p2l.common.errors import (
    AnswerTimeoutError,
    BadRequestError,
    ConfigError,
    InputError,
    KeyRefusedError,
    MalformedAnswerError,
    P2LClientError,
    UnavailableError,
)
from p2l.common.prompts import repair
from tests.conftest import Command, free_port
from tests.p2l.client_helpers import (
    ANSWER,
    NAMES,
    PLAIN,
    ROWS,
    Act,
    Caller,
    Endpoint,
    Pace,
    Say,
    cut,
    half,
    hang,
    no_http,
    refuse,
    serving,
    trickle,
)

KEY = "the-secret-key"
PROMPT = "a private prompt"
Open = Callable[..., Caller]


@pytest.fixture(scope="module")
def one_endpoint() -> Iterator[Endpoint]:
    with serving(Endpoint()) as endpoint:
        yield endpoint


@pytest.fixture
def endpoint(one_endpoint: Endpoint) -> Endpoint:
    one_endpoint.reset()
    return one_endpoint


@pytest.fixture(params=["sync", "async"])
def opened(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens clients of one kind, and closes them."""
    callers: list[Caller] = []

    def start(url: str, *args: Any, **options: Any) -> Caller:
        callers.append(Caller(request.param, url, *args, **options))
        return callers[-1]

    yield start
    for caller in callers:
        caller.__exit__()


def test_every_path_of_the_contract(opened: Open, endpoint: Endpoint) -> None:
    client = opened(endpoint.url, KEY)
    assert client.predict(PROMPT) == ModelAnswer([0.5, -1.25, 2.0], eta=-0.5, revision="abc")
    assert client.predict_batch(["one", ["one", "two"]]) == [
        ModelAnswer([1.0], revision="abc"),
        ModelAnswer([2.0], revision="abc"),
    ]
    board = client.leaderboard([PROMPT, "again"])
    assert board.rows == [RankedModel(**row) for row in ROWS]
    assert (board.truncated, board.revision) == (True, "abc")
    assert client.models() == ModelList(NAMES, "abc")
    assert client.info() == PLAIN["/info"]
    assert client.health() == Health("ready", "abc")

    asked = [(request.method, request.path) for request in endpoint.asked]
    posts = [("POST", path) for path in ("/predict", "/predict_batch", "/leaderboard")]
    assert asked == posts + [("GET", path) for path in ("/models", "/info", "/health")]
    assert [request.json for request in endpoint.asked[:3]] == [
        {"prompt": [PROMPT]},
        {"prompts": [["one"], ["one", "two"]]},
        {"prompt": [PROMPT, "again"]},
    ]
    assert all(request.headers["api-key"] == KEY for request in endpoint.asked)
    assert endpoint.asked[0].headers["content-type"] == "application/json"


def test_the_endpoint_is_told_how_long_the_client_waits(opened: Open, endpoint: Endpoint) -> None:
    endpoint.script.append(Say(502))
    opened(endpoint.url, pace=Pace(), timeout=5).predict(PROMPT)
    assert [request.headers["x-p2l-timeout"] for request in endpoint.asked] == ["5.000", "4.800"]


def test_an_endpoint_that_knows_coefficients_and_eta_alone(opened: Open, endpoint: Endpoint) -> None:
    endpoint.script += [Say(body={"coefs": [1, 2], "eta": None}), Say(body={"models": NAMES})]
    client = opened(endpoint.url)
    assert client.predict(PROMPT) == ModelAnswer([1.0, 2.0])
    assert client.models() == ModelList(NAMES)
    assert "api-key" not in endpoint.asked[0].headers


def test_a_prompt_that_is_none_is_not_sent(opened: Open, endpoint: Endpoint) -> None:
    client = opened(endpoint.url)
    for name, prompt in [("predict", []), ("predict", [3]), ("leaderboard", 3), ("predict_batch", "text")]:
        with pytest.raises(InputError):
            getattr(client, name)(prompt)
    with pytest.raises(InputError, match="prompt 1 "):
        client.predict_batch(["a", []])
    assert endpoint.asked == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.text(st.characters(exclude_categories=[])), min_size=1))
def test_any_text_arrives(one_endpoint: Endpoint, turns: list[str]) -> None:
    """Lone surrogates, which no encoding knows, are replaced; everything else arrives as it is."""
    one_endpoint.reset()
    with P2LClient(one_endpoint.url) as client:
        client.predict(["\ud800", *turns])
    assert one_endpoint.asked[0].json == {"prompt": ["\ufffd", *map(repair, turns)]}


def test_retry_after_is_honoured(opened: Open, endpoint: Endpoint) -> None:
    endpoint.script += [refuse(503, "queue full", Retry_After="2"), refuse(429, "slow down", Retry_After="1.5")]
    pace = Pace()
    assert opened(endpoint.url, pace=pace).predict(PROMPT).coefs == ANSWER["coefs"]
    assert pace.pauses == [2 + 0.2, 1.5 + 0.4]


def test_retry_after_may_be_a_date(opened: Open, endpoint: Endpoint) -> None:
    dates = [formatdate(time.time() + 30, usegmt=True), formatdate(0, usegmt=True), "soon", "-1"]
    endpoint.script += [refuse(503, "queue full", Retry_After=date) for date in dates]
    pace = Pace()
    opened(endpoint.url, pace=pace, retries=4).predict(PROMPT)
    assert 25 < pace.pauses[0] <= 30.2
    assert pace.pauses[1:] == [0.4, 0.8, 1.6]


@pytest.mark.parametrize("seconds", ["61", "9" * 400])
def test_a_pause_beyond_the_time_limit_is_not_made(opened: Open, endpoint: Endpoint, seconds: str) -> None:
    endpoint.script += [refuse(503, "queue full", Retry_After=seconds)]
    pace = Pace()
    with pytest.raises(UnavailableError, match=r"/predict is overloaded or not ready \(status 503\): queue full$"):
        opened(endpoint.url, pace=pace, timeout=60).predict(PROMPT)
    assert pace.pauses == []


def test_pauses_double_up_to_a_limit_and_the_time_limit_ends_them(opened: Open, endpoint: Endpoint) -> None:
    endpoint.script += [Say(502)] * 100
    pace = Pace()
    with pytest.raises(UnavailableError, match=r"failed \(status 502\) \[attempts: 9, seconds: 21.2\]$"):
        opened(endpoint.url, pace=pace, timeout=25, retries=50).predict(PROMPT)
    assert pace.pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5])


@pytest.mark.parametrize("act", [Say(502), Say(503), Say(504, b"<h1>Gateway Time-out</h1>"), Say(429), cut, half])
def test_what_may_pass_is_asked_again_as_often_as_allowed(opened: Open, endpoint: Endpoint, act: Act) -> None:
    client = opened(endpoint.url, pace=Pace(), retries=2)
    endpoint.script += [act, act]
    assert client.predict(PROMPT).coefs == ANSWER["coefs"]
    assert len(endpoint.asked) == 3
    endpoint.script += [act, act, act]
    with pytest.raises(P2LClientError):
        client.predict(PROMPT)
    assert len(endpoint.asked) == 6


@pytest.mark.parametrize(
    ("act", "error", "said"),
    [
        (refuse(400, "no list"), BadRequestError, "cannot use the prompt (status 400): no list"),
        (refuse(413, "over 1 MB"), BadRequestError, "finds the request too large (status 413): over 1 MB"),
        (refuse(422, "two\n\x1b[31mlines"), BadRequestError, "(status 422): two [31mlines"),
        (Say(422, {"detail": [{"input": PROMPT}]}), BadRequestError, "(status 422)"),
        (refuse(401, KEY), KeyRefusedError, "refuses the API key"),
        (refuse(403, KEY), KeyRefusedError, "refuses the API key"),
        (refuse(404, "Not Found"), MalformedAnswerError, "is this its URL? (status 404)"),
        (Say(405), MalformedAnswerError, "is this its URL? (status 405)"),
        (Say(307, headers={"Location": "http://elsewhere/"}), MalformedAnswerError, "is this its URL? (status 307)"),
        (Say(204), MalformedAnswerError, "is this its URL? (status 204)"),
        (refuse(500, "it broke"), UnavailableError, "failed (status 500): it broke"),
        (refuse(504, "too slow"), AnswerTimeoutError, "before the server's deadline (status 504): too slow"),
    ],
)
def test_what_will_not_pass_is_asked_once(
    opened: Open, endpoint: Endpoint, act: Act, error: type[P2LClientError], said: str
) -> None:
    endpoint.script.append(act)
    with pytest.raises(error) as raised:
        opened(endpoint.url, KEY).predict(PROMPT)
    message = str(raised.value)
    assert message.startswith(f"{endpoint.url}/predict ")
    assert said in message
    assert KEY not in message
    assert PROMPT not in message
    assert "\n" not in message
    assert "\x1b" not in message
    assert len(endpoint.asked) == 1


def test_mistakes_of_the_user_are_input_errors() -> None:
    """So that a command ends with exit code 2."""
    assert issubclass(KeyRefusedError, InputError)
    assert issubclass(BadRequestError, InputError)


def test_health_is_about_now(opened: Open, endpoint: Endpoint) -> None:
    endpoint.script.append(refuse(503, "loading", Retry_After="1"))
    client = opened(endpoint.url)
    with pytest.raises(UnavailableError, match="loading"):
        client.health()
    assert len(endpoint.asked) == 1


WRONG: list[tuple[str, bytes]] = [
    ("predict", b""),
    ("predict", b"<html>welcome</html>"),
    ("predict", b"\xff\xfe"),
    ("predict", b"null"),
    ("predict", b"[" * 100_000),
    ("predict", b"{}"),
    ("predict", b'{"coefs": []}'),
    ("predict", b'{"coefs": null}'),
    ("predict", b'{"coefs": [NaN]}'),
    ("predict", b'{"coefs": [1e999]}'),
    ("predict", b'{"coefs": ["1"]}'),
    ("predict", b'{"coefs": [1], "eta": "x"}'),
    ("predict_batch", b'{"predictions": []}'),
    ("predict_batch", b'{"predictions": [{}]}'),
    ("leaderboard", b'{"leaderboard": []}'),
    ("leaderboard", b'{"leaderboard": [{"rank": 1}]}'),
    ("models", b'{"models": "ant"}'),
    ("models", b'{"data": []}'),
    ("info", b"[]"),
    ("health", b"OK"),
]


@pytest.mark.parametrize(("name", "body"), WRONG, ids=lambda value: str(value[:30]))
def test_what_is_no_answer_is_said_clearly(endpoint: Endpoint, name: str, body: bytes) -> None:
    endpoint.script.append(Say(200, body))
    arguments = {"predict": [PROMPT], "predict_batch": [[PROMPT]], "leaderboard": [PROMPT]}.get(name, [])
    with P2LClient(endpoint.url) as client, pytest.raises(MalformedAnswerError, match="is this its URL") as raised:
        getattr(client, name)(*arguments)
    message = str(raised.value)
    assert message.startswith(f"{endpoint.url}/{name} did not answer as a P2L endpoint does")
    assert len(message) < 400
    assert PROMPT not in message


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    status=st.sampled_from([200, 400, 403, 418, 422, 500, 503]),
    body=st.binary()
    | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(lambda x: json.dumps(x).encode()),
    retry_after=st.text(st.characters(min_codepoint=32, max_codepoint=126)),
)
def test_no_answer_brings_down_the_client(one_endpoint: Endpoint, status: int, body: bytes, retry_after: str) -> None:
    one_endpoint.reset()
    one_endpoint.script.append(Say(status, body, {"Retry-After": retry_after}))
    with P2LClient(one_endpoint.url, retries=0) as client, pytest.raises(P2LClientError):
        client.predict(PROMPT)


def test_compressed_answers(opened: Open, endpoint: Endpoint) -> None:
    zipped = {"Content-Encoding": "gzip"}
    endpoint.script += [Say(200, gzip.compress(json.dumps(ANSWER).encode()), zipped), Say(200, b"no gzip", zipped)]
    client = opened(endpoint.url)
    assert client.predict(PROMPT).coefs == ANSWER["coefs"]
    with pytest.raises(MalformedAnswerError, match="cannot be decompressed"):
        client.predict(PROMPT)


@pytest.mark.parametrize("zipped", [False, True])
def test_an_answer_that_is_too_large_is_not_read_to_its_end(opened: Open, endpoint: Endpoint, zipped: bool) -> None:
    body = b" " * 200_000_000
    packed = gzip.compress(body, 1) if zipped else body
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    endpoint.script.append(Say(200, packed, {"Content-Encoding": "gzip"} if zipped else {}))
    with pytest.raises(MalformedAnswerError, match=r"sent more than 1 MiB; .* max_answer_mb"):
        opened(endpoint.url, max_answer_mb=1).predict(PROMPT)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "KiB"
    assert opened(endpoint.url).predict(PROMPT), "the usual answer"


def test_another_protocol_is_named(opened: Open, endpoint: Endpoint) -> None:
    endpoint.script.append(no_http)
    with pytest.raises(UnavailableError, match=r"cannot be reached \(.+\); is the endpoint running\?"):
        opened(endpoint.url, retries=0).predict(PROMPT)


def test_an_attempt_that_hangs_is_followed_by_another(opened: Open, endpoint: Endpoint) -> None:
    endpoint.script.append(hang)
    client = opened(endpoint.url, attempt_timeout=1.0, pace=Pace())
    assert client.predict(PROMPT).coefs == ANSWER["coefs"]


def test_an_endpoint_that_hangs_costs_the_time_limit(opened: Open, endpoint: Endpoint) -> None:
    endpoint.script += [hang] * 2
    client = opened(endpoint.url, timeout=0.2)
    with pytest.raises(AnswerTimeoutError, match=r"/predict gave no answer in time \[attempts: 1, seconds: \d"):
        client.predict(PROMPT)
    with pytest.raises(AnswerTimeoutError, match="/predict_batch gave no answer in time"):
        opened(endpoint.url, timeout=0.2, attempt_timeout=0.01).predict_batch([PROMPT])
    assert len(endpoint.asked) == 2


def test_an_answer_that_trickles_in_costs_the_time_limit(opened: Open, endpoint: Endpoint) -> None:
    endpoint.script += [trickle] * 4
    with pytest.raises(AnswerTimeoutError):
        opened(endpoint.url, timeout=0.2).predict(PROMPT)


def test_a_pause_that_lasts_too_long_leaves_no_time(opened: Open, endpoint: Endpoint) -> None:
    """What is missing then is time, whatever a socket says that was given none."""

    class Slow(Pace):
        def sleep(self, seconds: float) -> None:
            super().sleep(100 * seconds)

    endpoint.script += [Say(502), hang]
    with pytest.raises(AnswerTimeoutError, match=r"\[attempts: 2, seconds: 20.0\]"):
        opened(endpoint.url, pace=Slow(), timeout=10).predict(PROMPT)


def test_nobody_there(opened: Open) -> None:
    """The message names the URL, but no secret: not its credentials and query, not the key, not the prompt."""
    port = free_port()
    pace = Pace()
    client = opened(f"http://user:word@127.0.0.1:{port}/p2l/?token=hidden#part", KEY, pace=pace)
    with pytest.raises(UnavailableError) as raised:
        client.predict(PROMPT)
    message = str(raised.value)
    assert message.startswith(f"http://127.0.0.1:{port}/p2l/predict cannot be reached (")
    assert message.endswith("is the endpoint running? [attempts: 4, seconds: 1.4]")
    assert not any(secret in message + repr(client.client) for secret in ("user", "word", "hidden", KEY, PROMPT))
    assert pace.pauses == pytest.approx([0.2, 0.4, 0.8])


def test_a_client_shows_its_address_and_hides_its_key() -> None:
    with P2LClient("http://localhost:10250", KEY) as client:
        assert repr(client) == "P2LClient('http://localhost:10250', api_key='***')"
    with P2LClient("http://localhost:10250") as client:
        assert repr(client) == "P2LClient('http://localhost:10250', api_key=None)"


@pytest.mark.parametrize("prefix", ["/p2l", "/p2l/", "/a%2Fb", "/p2l?token=t"])
def test_an_endpoint_behind_a_gateway(opened: Open, endpoint: Endpoint, prefix: str) -> None:
    opened(endpoint.url + prefix).models()
    path, _, query = prefix.partition("?")
    assert endpoint.asked[0].path == path.rstrip("/") + "/models" + (f"?{query}" if query else "")


def test_credentials_of_the_url_are_sent(opened: Open, endpoint: Endpoint) -> None:
    opened(endpoint.url.replace("//", "//us%40er:word@")).models()
    assert endpoint.asked[0].headers["authorization"] == f"Basic {b64encode(b'us@er:word').decode()}"


@pytest.mark.parametrize(
    "url",
    ["", "localhost", "localhost:10250", "//host", "http://", "ftp://host", "http://host:99999", "http://host:x",
     "user:word@host", "host?token=word", "http://[::1"],
)  # fmt: skip
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="write for example http://localhost:10250") as raised:
        P2LClient(url)
    assert "word" not in str(raised.value)


@pytest.mark.parametrize("key", ["", " ", "a\nb", "schlüssel", "\x00"])
def test_a_key_that_no_header_carries_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="API key") as raised:
        P2LClient("http://localhost", key)
    assert not key.strip() or key not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [{"timeout": 0}, {"timeout": float("nan")}, {"attempt_timeout": -1}, {"retries": -1}, {"max_connections": 0}],
)
def test_a_limit_that_is_none_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        P2LClient("http://localhost", **options)


def test_threads_share_a_client_and_its_connections(endpoint: Endpoint) -> None:
    def ask(number: int) -> list[float]:
        return client.predict_batch([["turn"] * number])[0].coefs

    with P2LClient(endpoint.url, KEY) as client, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(1, 201))) == [[number] for number in range(1, 201)]
    assert endpoint.connections <= 8


def test_hundreds_of_calls_at_once(endpoint: Endpoint) -> None:
    async def ask() -> list[list[ModelAnswer]]:
        async with AsyncP2LClient(endpoint.url, KEY, max_connections=50) as client:
            return await asyncio.gather(*(client.predict_batch([["turn"] * (n + 1)]) for n in range(400)))

    answers = asyncio.run(ask())
    assert [answer.coefs for (answer,) in answers] == [[n + 1.0] for n in range(400)]
    assert endpoint.connections <= 50


def test_a_call_that_is_given_up_frees_its_connection(endpoint: Endpoint) -> None:
    async def ask() -> ModelAnswer:
        async with AsyncP2LClient(endpoint.url, max_connections=1) as client:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.predict(PROMPT), 0.1)
            return await client.predict(PROMPT)

    endpoint.script.append(hang)
    assert asyncio.run(ask()).coefs == ANSWER["coefs"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_https(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate is checked; an authority of one's own is named by SSL_CERT_FILE."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = "req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 1 -subj /CN=localhost"
    make = ["openssl", *words.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(make, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    secure = Endpoint()
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    with serving(secure):
        url = secure.url.replace("http:", "https:")
        with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            opened(url, retries=0).models()
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert opened(url).models().names == NAMES


def test_the_client_needs_no_model_library(command: Command) -> None:
    heavy = ("torch", "transformers", "fastapi", "pandas", "datasets")
    done = command("python", "-c", f"import sys, p2l.client; print([name for name in {heavy} if name in sys.modules])")
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
