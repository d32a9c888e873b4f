"""Flags of the endpoint that do not go together."""

import pytest

from p2l.common.errors import ConfigError
from p2l.endpoint import main
from tests.conftest import free_port


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--max-workers", "2"], "--max-workers is of Ray Serve; add --ray"),
        (["--models", "a=b"], "--models is of Ray Serve; add --ray"),
        (["--ray", "--reload"], "leave out --reload or --ray"),
        (["--ray", "--workers", "3", "--max-workers", "2"], "--max-workers 2 is less than --workers 3"),
        (["--ray", "--models", "a=b", "a=c"], "an id is there twice"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(flags: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        main(["-m", "any", "--host", "127.0.0.1", "--port", str(free_port()), *flags])
